//! Owns how lists are cut into pages: newest first, `next_cursor` leads to the older ones.

use serde::{Deserialize, Serialize};

use crate::error::ApiError;

/// Items of a page where no `limit` is given, and the most that can be asked for.
const DEFAULT_LIMIT: i64 = 50;
const MAX_LIMIT: i64 = 200;

/// What a list's query holds.
#[derive(Debug, Clone, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// Items wanted, 1 to 200; 50 when absent.
    pub limit: Option<i64>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

/// What the query of a list by name holds.
#[derive(Debug, Clone, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct NamePageQuery {
    /// Items wanted, 1 to 200; 50 when absent.
    pub limit: Option<i64>,
    /// `next_cursor` of the page before: the last name on it.
    pub cursor: Option<String>,
}

impl NamePageQuery {
    /// How many items to show.
    ///
    /// # Errors
    /// 400 when the limit is out of range.
    pub fn limit(&self) -> Result<i64, ApiError> {
        checked_limit(self.limit)
    }

    /// Only items with a name behind this one are wanted.
    pub fn after(&self) -> &str {
        self.cursor.as_deref().unwrap_or_default()
    }
}

fn checked_limit(limit: Option<i64>) -> Result<i64, ApiError> {
    match limit.unwrap_or(DEFAULT_LIMIT) {
        limit @ 1..=MAX_LIMIT => Ok(limit),
        _ => Err(ApiError::invalid_field(
            "limit",
            format!("must lie between 1 and {MAX_LIMIT}"),
        )),
    }
}

impl PageQuery {
    /// How many items to show.
    ///
    /// # Errors
    /// 400 when the limit is out of range.
    pub fn limit(&self) -> Result<i64, ApiError> {
        checked_limit(self.limit)
    }

    /// Only items with an id below this one are wanted.
    ///
    /// # Errors
    /// 400 when the cursor is not one of ours.
    pub fn before(&self) -> Result<i64, ApiError> {
        match self.cursor.as_deref() {
            None => Ok(i64::MAX),
            Some(text) => {
                text.parse().ok().filter(|id| *id > 0).ok_or_else(|| {
                    ApiError::invalid_field("cursor", "is not a cursor of this list")
                })
            }
        }
    }
}

/// One page of a list.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct Page<T> {
    /// The items, newest first or by name.
    pub items: Vec<T>,
    /// Leads to the next page; null on the last one.
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// A page of rows with ids or names, made from up to `limit + 1` of them: the one too many shows that there are
    /// more.
    pub fn of<R, I: ToString>(
        mut rows: Vec<R>,
        limit: i64,
        id: impl Fn(&R) -> I,
        show: impl FnMut(R) -> T,
    ) -> Self {
        let limit = usize::try_from(limit).unwrap_or_default();
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next_cursor = if more {
            rows.last().map(|last| id(last).to_string())
        } else {
            None
        };
        Self {
            items: rows.into_iter().map(show).collect(),
            next_cursor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(limit: Option<i64>, cursor: Option<&str>) -> PageQuery {
        PageQuery {
            limit,
            cursor: cursor.map(str::to_owned),
        }
    }

    #[test]
    fn the_cursor_is_the_last_id_of_a_page_that_is_not_the_last() {
        let page = |rows: Vec<i64>| Page::of(rows, 2, |id| *id, |id| id);
        assert_eq!(page(vec![9, 8, 7]).next_cursor.as_deref(), Some("8"));
        assert_eq!(page(vec![9, 8, 7]).items, [9, 8]);
        assert_eq!(page(vec![9, 8]).next_cursor, None);
        assert_eq!(query(None, Some("8")).before().unwrap(), 8);
    }

    #[test]
    fn limits_and_cursors_out_of_range_are_refused() {
        assert!(query(Some(0), None).limit().is_err());
        assert!(query(Some(201), None).limit().is_err());
        assert_eq!(query(None, None).limit().unwrap(), 50);
        assert!(query(None, Some("x")).before().is_err());
        assert!(query(None, Some("-1")).before().is_err());
    }
}
