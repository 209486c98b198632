//! Items of a table: reading attributes leniently, and building an update.
//!
//! Times are RFC 3339 text in UTC to the second; `ttl` is a number of seconds since 1970, because that is
//! what DynamoDB deletes by. When read, either form is understood.

use std::collections::HashMap;

use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::AttributeValue;
use ostler_core::time::Timestamp;

/// Name of every table's key.
pub const KEY: &str = "pk";

/// Name of the attribute by which DynamoDB deletes.
pub const TTL: &str = "ttl";

/// An item as the SDK gives it.
pub struct Item(HashMap<String, AttributeValue>);

impl Item {
    /// The item, unless its `ttl` is over: DynamoDB deletes up to days later.
    pub fn living(attributes: HashMap<String, AttributeValue>, now: Timestamp) -> Option<Self> {
        let item = Self(attributes);
        item.time(TTL).is_none_or(|ttl| ttl > now).then_some(item)
    }

    /// A text; `None` if it is empty.
    pub fn text(&self, name: &str) -> Option<String> {
        let text = self.0.get(name)?.as_s().ok()?;
        (!text.is_empty()).then(|| text.clone())
    }

    /// A whole number, also where it was written as text.
    pub fn number(&self, name: &str) -> Option<i64> {
        match self.0.get(name)? {
            AttributeValue::N(text) | AttributeValue::S(text) => text.parse().ok(),
            _ => None,
        }
    }

    /// The times in a map, in milliseconds since 1970, by their names; `None` if there is no map.
    pub fn times(&self, name: &str) -> Option<Vec<(String, Timestamp)>> {
        let map = self.0.get(name)?.as_m().ok()?;
        let time = |at: &AttributeValue| at.as_n().ok()?.parse().ok().map(Timestamp::from_millis);
        Some(map.iter().filter_map(|(name, at)| Some((name.clone(), time(at)?))).collect())
    }

    /// What follows `prefix` in the names of attributes.
    pub fn names_after<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.keys().filter_map(move |name| name.strip_prefix(prefix))
    }

    /// A switch that is on.
    pub fn is_on(&self, name: &str) -> bool {
        matches!(self.0.get(name), Some(AttributeValue::Bool(true)))
    }

    /// A time.
    pub fn time(&self, name: &str) -> Option<Timestamp> {
        match self.0.get(name)? {
            AttributeValue::S(text) => Timestamp::parse(text),
            AttributeValue::N(text) => text.parse().ok().map(Timestamp::from_seconds),
            _ => None,
        }
    }
}

/// A text attribute.
pub fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

/// A number attribute.
pub fn number(value: impl ToString) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

/// A time attribute.
pub fn time(at: Timestamp) -> AttributeValue {
    text(at.to_string())
}

/// The value of `ttl`: the first whole second that is not before `at`.
pub fn ttl(at: Timestamp) -> AttributeValue {
    number(Timestamp::from_millis(at.millis().saturating_add(999)).seconds())
}

/// An update that sets attributes and touches no others. Attribute `x` is `#x` in a condition (many of our
/// names are reserved words), its new value `:x`.
#[derive(Default)]
pub struct Update {
    sets: Vec<String>,
    removed: Vec<String>,
    names: HashMap<String, String>,
    values: HashMap<String, AttributeValue>,
    condition: Option<String>,
}

impl Update {
    /// Sets an attribute.
    pub fn set(self, name: &str, value: AttributeValue) -> Self {
        self.with(format!("#{name} = :{name}"), name, value)
    }

    /// Sets an attribute that is not there yet.
    pub fn keep(self, name: &str, value: AttributeValue) -> Self {
        self.with(format!("#{name} = if_not_exists(#{name}, :{name})"), name, value)
    }

    /// Sets an attribute that is not there yet, if there is a value.
    pub fn keep_text(self, name: &str, value: &str) -> Self {
        if value.is_empty() { self } else { self.keep(name, text(value)) }
    }

    /// Sets an attribute, or removes it.
    pub fn put(self, name: &str, value: Option<AttributeValue>) -> Self {
        match value {
            Some(value) => self.set(name, value),
            None => self.remove(name),
        }
    }

    /// Removes an attribute.
    pub fn remove(mut self, name: &str) -> Self {
        self.removed.push(format!("#{name}"));
        self.naming(name)
    }

    /// Adds to the end of a list.
    pub fn append(mut self, name: &str, more: AttributeValue) -> Self {
        self.values.insert(":none".into(), AttributeValue::L(vec![]));
        self.with(
            format!("#{name} = list_append(if_not_exists(#{name}, :none), :{name})"),
            name,
            more,
        )
    }

    /// Adds to a number that is there.
    pub fn advance(self, name: &str, by: AttributeValue) -> Self {
        self.with(format!("#{name} = #{name} + :{name}"), name, by)
    }

    /// Names an attribute that only the condition is about.
    pub fn naming(mut self, name: &str) -> Self {
        self.names.insert(format!("#{name}"), name.to_owned());
        self
    }

    /// Only if `condition` holds; `values` are those in it that are not set.
    pub fn when<const N: usize>(
        mut self,
        condition: &str,
        values: [(&str, AttributeValue); N],
    ) -> Self {
        self.condition = Some(condition.to_owned());
        self.values.extend(values.map(|(name, value)| (name.to_owned(), value)));
        self
    }

    /// The request.
    pub fn on(self, request: UpdateItemFluentBuilder) -> UpdateItemFluentBuilder {
        let part = |verb: &str, parts: &[String]| {
            if parts.is_empty() { None } else { Some(format!("{verb} {}", parts.join(", "))) }
        };
        let parts = [part("SET", &self.sets), part("REMOVE", &self.removed)];
        let values = Some(self.values).filter(|values| !values.is_empty());
        request
            .update_expression(parts.into_iter().flatten().collect::<Vec<_>>().join(" "))
            .set_condition_expression(self.condition)
            .set_expression_attribute_names(Some(self.names))
            .set_expression_attribute_values(values)
    }

    fn with(mut self, set: String, name: &str, value: AttributeValue) -> Self {
        self.sets.push(set);
        self.values.insert(format!(":{name}"), value);
        self.naming(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(name: &str, value: AttributeValue) -> Item {
        Item(HashMap::from([(name.to_owned(), value)]))
    }

    #[test]
    fn attributes_of_another_type_are_absent() {
        assert_eq!(item("a", text("")).text("a"), None);
        assert_eq!(item("a", number(7)).text("a"), None);
        assert_eq!(item("a", text("7")).number("a"), Some(7));
        assert_eq!(item("a", text("x")).number("a"), None);
        assert_eq!(item("a", AttributeValue::Null(true)).time("a"), None);
        assert!(!item("a", text("true")).is_on("a"));
    }

    #[test]
    fn times_are_read_as_text_and_as_seconds() {
        let at = Timestamp::parse("2026-11-30T12:00:00Z").unwrap();
        assert_eq!(item("a", time(at)).time("a"), Some(at));
        assert_eq!(item("a", ttl(at)).time("a"), Some(at));
        assert_eq!(ttl(Timestamp::from_millis(1_001)), number(2));
    }

    #[test]
    fn an_item_past_its_ttl_is_not_there() {
        let attributes = || HashMap::from([(TTL.to_owned(), number(100))]);
        assert!(Item::living(attributes(), Timestamp::from_millis(99_999)).is_some());
        assert!(Item::living(attributes(), Timestamp::from_seconds(100)).is_none());
        assert!(Item::living(HashMap::new(), Timestamp::from_seconds(100)).is_some());
    }
}
