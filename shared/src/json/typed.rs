//! Reads a JSON value into a type, and takes objects only where the type has named fields.
//!
//! What serde derives for a struct also takes an array of the fields' values in their order, which no document
//! allows and which passes by the check for unknown fields.

use serde::de::value::{
    BorrowedStrDeserializer, MapAccessDeserializer, MapDeserializer, SeqDeserializer,
};
use serde::de::{Deserializer, Error as _, IntoDeserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Value};

/// A value to be read.
#[derive(Debug, Clone, Copy)]
pub struct Typed<'de>(pub &'de Value);

impl<'de> IntoDeserializer<'de, Error> for Typed<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Typed<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(items) => {
                let mut items = SeqDeserializer::new(items.iter().map(Typed));
                let read = visitor.visit_seq(&mut items)?;
                items.end()?;
                Ok(read)
            }
            Value::Object(fields) => {
                let fields = fields
                    .iter()
                    .map(|(name, value)| (name.as_str(), Typed(value)));
                let mut fields = MapDeserializer::new(fields);
                let read = visitor.visit_map(&mut fields)?;
                fields.end()?;
                Ok(read)
            }
            plain => plain.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if self.0.is_array() {
            return Err(Error::invalid_type(Unexpected::Seq, &"an object"));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.0.is_null() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::String(variant) => {
                BorrowedStrDeserializer::new(variant).deserialize_enum(name, variants, visitor)
            }
            Value::Object(fields) => {
                let fields = fields
                    .iter()
                    .map(|(name, value)| (name.as_str(), Typed(value)));
                visitor.visit_enum(MapAccessDeserializer::new(MapDeserializer::new(fields)))
            }
            other => other.deserialize_enum(name, variants, visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        Plain,
        Sized(u8),
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Inner {
        count: u64,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Outer {
        inner: Option<Inner>,
        list: Vec<Inner>,
        pair: (i64, f64),
        kinds: Vec<Kind>,
        rest: Value,
    }

    #[test]
    fn every_kind_of_field_is_read() {
        let value = json!({"inner": {"count": 1}, "list": [{"count": 2}], "pair": [-3, 0.5],
            "kinds": ["plain", {"sized": 4}], "rest": {"a": [1, null, "x"]}});
        let read = Outer::deserialize(Typed(&value)).unwrap();
        assert_eq!(read, serde_json::from_value(value).unwrap());
    }

    #[test]
    fn an_array_is_no_object_at_any_depth() {
        let whole = json!([null, [], [1, 2.0], [], {}]);
        let nested = json!({"inner": [1], "list": [], "pair": [1, 1], "kinds": [], "rest": 0});
        let listed = json!({"inner": null, "list": [[1]], "pair": [1, 1], "kinds": [], "rest": 0});
        for value in [whole, nested, listed] {
            let error = Outer::deserialize(Typed(&value)).unwrap_err().to_string();
            assert_eq!(error, "invalid type: sequence, expected an object");
        }
    }
}
