//! The filters of `search_memories` and `get_memories`.
//!
//! A filter is an object: its names have to hold together. `AND`, `OR` and `NOT` take lists of
//! filters (or one); every other name is a field and takes a value, `"*"` for any value, or an
//! object of operators: `eq`, `ne`, `in`, `nin`, `gt`, `gte`, `lt`, `lte`, `contains`, `icontains`.
//! What is not there equals nothing and holds nothing; so `ne` and `nin` let it pass.
use serde_json::{Map, Value};

use super::date::to_ms;

/// How deep filters may be nested.
const MAX_DEPTH: usize = 8;
/// Most conditions of one filter, lists of values included.
const MAX_PARTS: usize = 512;

/// A filter that was read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Filter {
    All(Vec<Filter>),
    Any(Vec<Filter>),
    Not(Box<Filter>),
    Field(String, Test),
}

/// What a field has to be.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Test {
    /// It is there.
    Exists,
    Eq(Value),
    In(Vec<Value>),
    Gt(Value),
    Gte(Value),
    Lt(Value),
    Lte(Value),
    Contains(String),
    ContainsIgnoringCase(String),
}

/// Where the value of a field comes from: none, one, or several of which one suffices.
pub(crate) trait Fields {
    fn values(&self, field: &str) -> Vec<Value>;
}

impl Filter {
    /// Reads a filter; `null` and an empty object let everything pass.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub(crate) fn parse(value: &Value) -> Result<Self, String> {
        let mut parts = 0;
        read(value, 0, &mut parts)
    }

    pub(crate) fn passes(&self, of: &impl Fields) -> bool {
        match self {
            Self::All(filters) => filters.iter().all(|filter| filter.passes(of)),
            Self::Any(filters) => filters.iter().any(|filter| filter.passes(of)),
            Self::Not(filter) => !filter.passes(of),
            Self::Field(name, test) => of.values(name).iter().any(|value| test.holds(value)),
        }
    }
}

impl Test {
    fn holds(&self, value: &Value) -> bool {
        match self {
            Self::Exists => !value.is_null(),
            Self::Eq(wanted) => equal(value, wanted),
            Self::In(wanted) => wanted.iter().any(|wanted| equal(value, wanted)),
            Self::Gt(than) => order(value, than).is_some_and(std::cmp::Ordering::is_gt),
            Self::Gte(than) => order(value, than).is_some_and(std::cmp::Ordering::is_ge),
            Self::Lt(than) => order(value, than).is_some_and(std::cmp::Ordering::is_lt),
            Self::Lte(than) => order(value, than).is_some_and(std::cmp::Ordering::is_le),
            Self::Contains(part) => match value {
                Value::String(text) => text.contains(part.as_str()),
                other => equal(other, &Value::from(part.as_str())),
            },
            Self::ContainsIgnoringCase(part) => value
                .as_str()
                .is_some_and(|text| text.to_lowercase().contains(&part.to_lowercase())),
        }
    }
}

fn read(value: &Value, depth: usize, parts: &mut usize) -> Result<Filter, String> {
    if depth > MAX_DEPTH {
        return Err(format!("filters are nested at most {MAX_DEPTH} deep"));
    }
    let fields = match value {
        Value::Null => return Ok(Filter::All(Vec::new())),
        // A list where one filter is wanted means all of them.
        Value::Array(_) => return Ok(Filter::All(list(value, depth, parts)?)),
        Value::Object(fields) => fields,
        _ => return Err("a filter is an object".to_owned()),
    };
    let mut all = Vec::new();
    for (name, value) in fields {
        *parts += 1;
        if *parts > MAX_PARTS {
            return Err(format!("a filter has at most {MAX_PARTS} conditions"));
        }
        match name.as_str() {
            "AND" | "and" | "$and" => all.push(Filter::All(list(value, depth, parts)?)),
            "OR" | "or" | "$or" => all.push(Filter::Any(list(value, depth, parts)?)),
            // Of several, none may hold.
            "NOT" | "not" | "$not" => {
                let any = Filter::Any(list(value, depth, parts)?);
                all.push(Filter::Not(Box::new(any)));
            }
            "metadata" if value.is_object() && !is_tests(value) => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    tests(&format!("metadata.{key}"), value, &mut all, parts)?;
                }
            }
            field => tests(field, value, &mut all, parts)?,
        }
    }
    Ok(Filter::All(all))
}

fn list(value: &Value, depth: usize, parts: &mut usize) -> Result<Vec<Filter>, String> {
    match value {
        Value::Array(filters) => filters
            .iter()
            .map(|filter| read(filter, depth + 1, parts))
            .collect(),
        one => Ok(vec![read(one, depth + 1, parts)?]),
    }
}

const OPERATORS: [&str; 10] = [
    "eq",
    "ne",
    "in",
    "nin",
    "gt",
    "gte",
    "lt",
    "lte",
    "contains",
    "icontains",
];

fn is_tests(value: &Value) -> bool {
    value.as_object().is_some_and(|tests| {
        !tests.is_empty() && tests.keys().all(|name| OPERATORS.contains(&name.as_str()))
    })
}

fn tests(
    field: &str,
    value: &Value,
    all: &mut Vec<Filter>,
    parts: &mut usize,
) -> Result<(), String> {
    let mut push = |test| all.push(Filter::Field(field.to_owned(), test));
    match value {
        Value::String(any) if any == "*" => push(Test::Exists),
        Value::Array(values) => push(Test::In(bounded(values, parts)?)),
        Value::Object(operators) => return operated(field, operators, all, parts),
        value => push(Test::Eq(value.clone())),
    }
    Ok(())
}

fn operated(
    field: &str,
    operators: &Map<String, Value>,
    all: &mut Vec<Filter>,
    parts: &mut usize,
) -> Result<(), String> {
    if operators.is_empty() {
        return Err(format!("`{}` has no operator", short(field)));
    }
    for (operator, value) in operators {
        let several = |parts: &mut usize| match value {
            Value::Array(values) => bounded(values, parts),
            _ => Err(format!("`{operator}` takes a list")),
        };
        let text = || match value {
            Value::String(text) => Ok(text.clone()),
            _ => Err(format!("`{operator}` takes a text")),
        };
        let is = |test| Filter::Field(field.to_owned(), test);
        let not = |filter| Filter::Not(Box::new(filter));
        all.push(match operator.as_str() {
            "eq" if *value == "*" => is(Test::Exists),
            "eq" => is(Test::Eq(value.clone())),
            "ne" if *value == "*" => not(is(Test::Exists)),
            "ne" => not(is(Test::Eq(value.clone()))),
            "in" => is(Test::In(several(parts)?)),
            "nin" => not(is(Test::In(several(parts)?))),
            "gt" => is(Test::Gt(value.clone())),
            "gte" => is(Test::Gte(value.clone())),
            "lt" => is(Test::Lt(value.clone())),
            "lte" => is(Test::Lte(value.clone())),
            "contains" => is(Test::Contains(text()?)),
            "icontains" => is(Test::ContainsIgnoringCase(text()?)),
            other => {
                return Err(format!(
                    "`{}` is no operator; there are {}",
                    short(other),
                    OPERATORS.join(", ")
                ));
            }
        });
    }
    Ok(())
}

fn bounded(values: &[Value], parts: &mut usize) -> Result<Vec<Value>, String> {
    *parts += values.len();
    if *parts > MAX_PARTS {
        return Err(format!("a filter has at most {MAX_PARTS} conditions"));
    }
    Ok(values.to_vec())
}

fn short(name: &str) -> String {
    name.chars().take(40).collect()
}

fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::String(left), Value::String(right)) => {
            left == right || order_of_dates(left, right).is_some_and(std::cmp::Ordering::is_eq)
        }
        (Value::Number(left), Value::Number(right)) => left.as_f64() == right.as_f64(),
        (left, right) => left == right,
    }
}

fn order(left: &Value, right: &Value) -> Option<std::cmp::Ordering> {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => left.as_f64()?.partial_cmp(&right.as_f64()?),
        (Value::String(left), Value::String(right)) => {
            order_of_dates(left, right).or_else(|| Some(left.cmp(right)))
        }
        _ => None,
    }
}

/// Orders two texts that both are dates.
fn order_of_dates(left: &str, right: &str) -> Option<std::cmp::Ordering> {
    Some(to_ms(left)?.cmp(&to_ms(right)?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct Of(Value);

    impl Fields for Of {
        fn values(&self, field: &str) -> Vec<Value> {
            match &self.0[field] {
                Value::Null => Vec::new(),
                Value::Array(values) => values.clone(),
                one => vec![one.clone()],
            }
        }
    }

    fn passes(filter: Value, of: Value) -> bool {
        Filter::parse(&filter).unwrap().passes(&Of(of))
    }

    #[test]
    fn fields_and_operators() {
        let of = json!({"user_id": "ann", "n": 5, "categories": ["food", "Travel"],
            "created_at": "2026-11-30T12:00:00+00:00", "metadata.k": "v"});
        for (filter, expected) in [
            (json!({}), true),
            (json!(null), true),
            (json!({"user_id": "ann"}), true),
            (json!({"user_id": "bob"}), false),
            (json!({"user_id": "*"}), true),
            (json!({"run_id": "*"}), false),
            (json!({"run_id": {"ne": "*"}}), true),
            (json!({"user_id": {"eq": "ann"}, "n": 5}), true),
            (json!({"user_id": {"ne": "ann"}}), false),
            (json!({"run_id": {"ne": "r"}}), true),
            (json!({"user_id": {"in": ["bob", "ann"]}}), true),
            (json!({"user_id": ["bob"]}), false),
            (json!({"user_id": {"nin": ["bob"]}}), true),
            (json!({"run_id": {"nin": ["r"]}}), true),
            (json!({"n": {"gt": 4, "lte": 5.0}}), true),
            (json!({"n": {"gt": 5}}), false),
            (json!({"n": {"gte": "5"}}), false),
            (
                json!({"created_at": {"gte": "2026-11-30", "lt": "2026-12-01"}}),
                true,
            ),
            (json!({"created_at": {"gt": "2026-11-30T12:00:00Z"}}), false),
            (json!({"categories": {"contains": "food"}}), true),
            (json!({"categories": {"contains": "travel"}}), false),
            (json!({"categories": {"icontains": "tRaVeL"}}), true),
            (json!({"metadata": {"k": "v"}}), true),
            (json!({"metadata": {"k": {"ne": "v"}}}), false),
        ] {
            assert_eq!(passes(filter.clone(), of.clone()), expected, "{filter}");
        }
    }

    #[test]
    fn filters_nest() {
        let of = json!({"user_id": "ann", "agent_id": "bot"});
        let either = json!({"OR": [{"user_id": "bob"}, {"agent_id": "bot"}]});
        assert!(passes(either.clone(), of.clone()));
        let both = json!({"AND": [{"user_id": "ann"}, either]});
        assert!(passes(both, of.clone()));
        assert!(!passes(json!({"NOT": [{"user_id": "ann"}]}), of.clone()));
        assert!(passes(json!({"NOT": {"user_id": "bob"}}), of.clone()));
        assert!(!passes(json!({"OR": []}), of));
    }

    #[test]
    fn what_is_no_filter_says_why() {
        let mut deep = json!({"user_id": "x"});
        for _ in 0..20 {
            deep = json!({"AND": [deep]});
        }
        let wide: Vec<_> = (0..1_000).collect();
        for (filter, says) in [
            (json!("ann"), "object"),
            (json!({"n": {"near": 5}}), "`near` is no operator"),
            (json!({"n": {"in": 5}}), "takes a list"),
            (json!({"n": {"contains": 5}}), "takes a text"),
            (json!({"n": {}}), "no operator"),
            (deep, "deep"),
            (json!({"n": {"in": wide}}), "at most"),
        ] {
            let said = Filter::parse(&filter).unwrap_err();
            assert!(said.contains(says), "{said}");
        }
    }
}
