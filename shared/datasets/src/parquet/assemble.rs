//! Puts the values of leaf columns together to nested ones.
//!
//! A value's definition level says how many of the optional and repeated parts above it are there, its repetition
//! level at which repeated part it goes on (0: a new row). Source: Melnik et al., "Dremel: Interactive Analysis of
//! Web-Scale Datasets", 2010, and LogicalTypes.md of the Parquet format for how lists are written.

use parquet::basic::{ConvertedType, LogicalType, Repetition};
use parquet::schema::types::Type;
use serde_json::{Map, Value};

use super::column::{Column, ColumnPlan};
use crate::error::DatasetError;
use crate::record::RecordProblem;

/// A part of the schema.
#[derive(Debug)]
pub(super) struct Node {
    /// Least definition level with which it is there.
    def: i16,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// The number of a leaf column.
    Leaf(usize),
    Struct(Vec<(String, Node)>),
    List {
        /// Least definition level with which there is an element.
        element_def: i16,
        /// Repetition level of further elements.
        rep: i16,
        element: Box<Node>,
    },
}

type Assembled = Result<Result<Value, RecordProblem>, DatasetError>;

impl Node {
    /// The part that begins with a top-level column; its leaves are added to `plans`.
    pub(super) fn of(column: &Type, plans: &mut Vec<ColumnPlan>) -> Result<Self, DatasetError> {
        Self::below(column, 0, 0, plans)
    }

    fn below(
        schema: &Type,
        def: i16,
        rep: i16,
        plans: &mut Vec<ColumnPlan>,
    ) -> Result<Self, DatasetError> {
        match repetition(schema) {
            Repetition::REQUIRED => Self::present(schema, def, rep, plans),
            Repetition::OPTIONAL => Self::present(schema, def + 1, rep, plans),
            // A repeated part without a list around it is a list that is always there.
            Repetition::REPEATED => Ok(Self {
                def,
                kind: Kind::List {
                    element_def: def + 1,
                    rep: rep + 1,
                    element: Box::new(Self::present(schema, def + 1, rep + 1, plans)?),
                },
            }),
        }
    }

    /// The part itself, there from the definition level `def` on.
    fn present(
        schema: &Type,
        def: i16,
        rep: i16,
        plans: &mut Vec<ColumnPlan>,
    ) -> Result<Self, DatasetError> {
        if schema.is_primitive() {
            plans.push(ColumnPlan::new(schema.name()));
            return Ok(Self {
                def,
                kind: Kind::Leaf(plans.len() - 1),
            });
        }
        if let Some(repeated) = list_of(schema) {
            let (element_def, rep) = (def + 1, rep + 1);
            let element = match element_of(schema, repeated) {
                Some(element) => Self::below(element, element_def, rep, plans)?,
                None => Self::present(repeated, element_def, rep, plans)?,
            };
            return Ok(Self {
                def,
                kind: Kind::List {
                    element_def,
                    rep,
                    element: Box::new(element),
                },
            });
        }
        if schema.get_fields().is_empty() {
            return Err(DatasetError::damaged(
                None,
                format!("the Parquet column `{}` has nothing in it", schema.name()),
            ));
        }
        let mut fields = Vec::new();
        for field in schema.get_fields() {
            fields.push((
                field.name().to_owned(),
                Self::below(field, def, rep, plans)?,
            ));
        }
        Ok(Self {
            def,
            kind: Kind::Struct(fields),
        })
    }

    /// Takes the next value of this part from the columns.
    pub(super) fn value(&self, columns: &mut [Column]) -> Assembled {
        let first = self.first_leaf();
        match &self.kind {
            Kind::Leaf(leaf) => columns[*leaf].take(),
            Kind::Struct(_) | Kind::List { .. } if peek_def(&columns[first])? < self.def => {
                self.pass(columns)?;
                Ok(Ok(Value::Null))
            }
            Kind::Struct(fields) => {
                let (mut object, mut problem) = (Map::new(), None);
                for (name, field) in fields {
                    match field.value(columns)? {
                        Ok(value) => {
                            object.insert(name.clone(), value);
                        }
                        Err(found) => problem = problem.or(Some(found)),
                    }
                }
                Ok(problem.map_or(Ok(Value::Object(object)), Err))
            }
            Kind::List {
                element_def,
                rep,
                element,
            } => {
                if peek_def(&columns[first])? < *element_def {
                    self.pass(columns)?;
                    return Ok(Ok(Value::Array(Vec::new())));
                }
                let (mut items, mut problem) = (Vec::new(), None);
                loop {
                    match element.value(columns)? {
                        Ok(value) => items.push(value),
                        Err(found) => problem = problem.or(Some(found)),
                    }
                    if columns[first].peek_rep() != Some(*rep) {
                        return Ok(problem.map_or(Ok(Value::Array(items)), Err));
                    }
                }
            }
        }
    }

    /// Takes one missing value from every column below.
    fn pass(&self, columns: &mut [Column]) -> Result<(), DatasetError> {
        match &self.kind {
            Kind::Leaf(leaf) => columns[*leaf].take().map(|_| ()),
            Kind::Struct(fields) => fields.iter().try_for_each(|(_, field)| field.pass(columns)),
            Kind::List { element, .. } => element.pass(columns),
        }
    }

    fn first_leaf(&self) -> usize {
        match &self.kind {
            Kind::Leaf(leaf) => *leaf,
            // A struct has at least one field.
            Kind::Struct(fields) => fields.first().map_or(0, |(_, field)| field.first_leaf()),
            Kind::List { element, .. } => element.first_leaf(),
        }
    }
}

fn peek_def(column: &Column) -> Result<i16, DatasetError> {
    column.peek_def().ok_or_else(|| {
        DatasetError::damaged(None, "columns of one Parquet list do not fit together")
    })
}

fn repetition(schema: &Type) -> Repetition {
    let info = schema.get_basic_info();
    if info.has_repetition() {
        info.repetition()
    } else {
        Repetition::REQUIRED
    }
}

/// The repeated part of a list.
fn list_of(schema: &Type) -> Option<&Type> {
    let info = schema.get_basic_info();
    let is_list = info.converted_type() == ConvertedType::LIST
        || matches!(info.logical_type_ref(), Some(LogicalType::List));
    match schema.get_fields() {
        [repeated] if is_list && repetition(repeated) == Repetition::REPEATED => Some(repeated),
        _ => None,
    }
}

/// The element of a list that is written in three levels; older writers repeat the element itself.
fn element_of<'a>(list: &Type, repeated: &'a Type) -> Option<&'a Type> {
    let is_element = repeated.is_primitive()
        || repeated.name() == "array"
        || repeated.name() == format!("{}_tuple", list.name());
    match (is_element, repeated) {
        (false, Type::GroupType { fields, .. }) => match fields.as_slice() {
            [element] => Some(element),
            _ => None,
        },
        _ => None,
    }
}
