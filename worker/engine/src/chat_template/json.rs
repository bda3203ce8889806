//! A template's `tojson`, in the form that Python's `json.dumps` gives, which templates were written for.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Writes `value`; on one line, or with `indent` spaces a level.
pub(super) fn dump(value: &Value, indent: Option<usize>) -> Result<String, Error> {
    let mut out = String::new();
    write(&mut out, value, indent, 0)?;
    Ok(out)
}

fn write(
    out: &mut String,
    value: &Value,
    indent: Option<usize>,
    depth: usize,
) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&value.to_string()),
        ValueKind::String => write_text(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_items(out, ('[', ']'), items.iter(), indent, depth, |out, item| {
                write(out, item, indent, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let keys: Vec<Value> = value.try_iter()?.collect();
            write_items(out, ('{', '}'), keys.iter(), indent, depth, |out, key| {
                write_text(out, &key.to_string());
                out.push_str(": ");
                write(out, &value.get_item(key)?, indent, depth + 1)
            })?;
        }
        other => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("{other} cannot be written as JSON"),
            ));
        }
    }
    Ok(())
}

fn write_items<'a>(
    out: &mut String,
    (open, close): (char, char),
    items: impl ExactSizeIterator<Item = &'a Value>,
    indent: Option<usize>,
    depth: usize,
    mut write_item: impl FnMut(&mut String, &Value) -> Result<(), Error>,
) -> Result<(), Error> {
    let line = |out: &mut String, depth: usize| {
        if let Some(spaces) = indent {
            out.push('\n');
            out.push_str(&" ".repeat(spaces * depth));
        }
    };
    let empty = items.len() == 0;
    out.push(open);
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.push_str(if indent.is_some() { "," } else { ", " });
        }
        line(out, depth + 1);
        write_item(out, item)?;
    }
    if !empty {
        line(out, depth);
    }
    out.push(close);
    Ok(())
}

fn write_text(out: &mut String, text: &str) {
    out.push_str(&serde_json::Value::from(text).to_string());
}
