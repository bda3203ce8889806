//! What stands in a volunteer's query string: percent-decoded once, then checked.

use std::borrow::Cow;

use super::Refused;

/// Longest pseudonym, in characters.
const MAX_WORKER_CHARACTERS: usize = 60;

/// A volunteer's pseudonym: 1 to 60 of ASCII letters and digits, `_`, `.` and `-`. Never used as a path.
///
/// # Errors
/// 400 where it is missing, doubled or another text.
pub fn worker(query: &str) -> Result<String, Refused> {
    let name = once(query, "isci")?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if !(1..=MAX_WORKER_CHARACTERS).contains(&name.len()) || !name.bytes().all(is_plain) {
        return Err(Refused::invalid(format!(
            "isci must be 1 to {MAX_WORKER_CHARACTERS} characters, of a-z, A-Z, 0-9, _, . and -"
        )));
    }
    Ok(name.into_owned())
}

/// A number in plain decimal digits. One too large for any round or shard is read as the largest there is.
///
/// # Errors
/// 400 where it is missing, doubled or something else.
pub fn number(query: &str, field: &str) -> Result<u64, Refused> {
    let text = once(query, field)?;
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Refused::invalid(format!(
            "{field} must be a number in decimal digits"
        )));
    }
    Ok(text.parse().unwrap_or(u64::MAX))
}

/// The value of a parameter that must stand in the query exactly once.
fn once<'a>(query: &'a str, field: &str) -> Result<Cow<'a, str>, Refused> {
    let mut values = url::form_urlencoded::parse(query.as_bytes())
        .filter(|(name, _)| name == field)
        .map(|(_, value)| value);
    match (values.next(), values.next()) {
        (Some(value), None) => Ok(value),
        (None, _) => Err(Refused::invalid(format!("{field} is missing"))),
        (Some(_), Some(_)) => Err(Refused::invalid(format!("{field} stands twice"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g100_a_pseudonym_is_decoded_once_and_then_checked() {
        assert_eq!(worker("isci=ali%2Dveli").unwrap(), "ali-veli");
        assert_eq!(worker("isci=ali-veli&x=1").unwrap(), "ali-veli");
        assert_eq!(worker("isci=%61li").unwrap(), "ali");
        let longest = "a".repeat(60);
        assert_eq!(worker(&format!("isci={longest}")).unwrap(), longest);
        for refused in [
            "isci=ali%20veli",
            "isci=ali+veli",
            "isci=%C3%A7em",
            "isci=",
            "isci",
            "",
            "isci=ali%252Dveli",
            "isci=..%2F..%2Fetc",
            "isci=a%00b",
            "isci=%zz",
            "isci=a&isci=a",
            "ISCI=ali",
        ] {
            assert_eq!(worker(refused).unwrap_err().status(), 400, "{refused}");
        }
        assert!(worker(&format!("isci={longest}a")).is_err());
    }

    #[test]
    fn rounds_and_shards_are_plain_decimal_digits() {
        assert_eq!(number("tur=0", "tur").unwrap(), 0);
        assert_eq!(number("isci=a&tur=%31%32", "tur").unwrap(), 12);
        assert_eq!(
            number("tur=99999999999999999999999", "tur").unwrap(),
            u64::MAX
        );
        for refused in [
            "tur=",
            "tur=-1",
            "tur=+1",
            "tur=1.0",
            "tur=1e2",
            "tur=0x1",
            "tur=%EF%BC%91",
            "tur=1&tur=1",
            "x=1",
        ] {
            assert!(number(refused, "tur").is_err(), "{refused}");
        }
    }
}
