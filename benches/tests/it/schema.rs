//! Checks a value against docs/benchmark.schema.json, by the keywords that this file has. Also used by the tests of `xtask`.

use serde_json::Value;

/// Lists what contradicts the definition.
pub(crate) fn faults(definition: &str, value: &Value) -> Vec<String> {
    let schema: Value = serde_json::from_str(include_str!("../../../docs/benchmark.schema.json")).unwrap();
    let mut found = Vec::new();
    check(&schema, &schema["$defs"][definition], value, definition, &mut found);
    found
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    for (keyword, wanted) in schema.as_object().unwrap() {
        let is_met = match keyword.as_str() {
            "description" => true,
            "$ref" => {
                let name = wanted.as_str().unwrap().strip_prefix("#/$defs/").unwrap();
                check(root, &root["$defs"][name], value, at, found);
                true
            }
            "type" => match wanted {
                Value::Array(types) => types.iter().any(|wanted| is_of_type(value, wanted)),
                wanted => is_of_type(value, wanted),
            },
            "const" => value == wanted,
            "enum" => wanted.as_array().unwrap().contains(value),
            "required" => {
                wanted.as_array().unwrap().iter().all(|name| value.get(name.as_str().unwrap()).is_some())
            }
            "additionalProperties" => {
                let keys = value.as_object().into_iter().flat_map(|object| object.keys());
                wanted != &Value::Bool(false)
                    || keys.into_iter().all(|key| schema["properties"].get(key).is_some())
            }
            "properties" => {
                for (name, property) in wanted.as_object().unwrap() {
                    if let Some(value) = value.get(name) {
                        check(root, property, value, &format!("{at}.{name}"), found);
                    }
                }
                true
            }
            "items" => {
                for item in value.as_array().into_iter().flatten() {
                    check(root, wanted, item, &format!("{at}[]"), found);
                }
                true
            }
            _ => false,
        };
        if !is_met {
            found.push(format!("{at}: `{keyword}`: {wanted} of {value}"));
        }
    }
}

fn is_of_type(value: &Value, wanted: &Value) -> bool {
    match wanted.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("number") => value.is_number(),
        Some("integer") => value.is_u64(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        _ => false,
    }
}
