//! The parameters of EC2's Query protocol: `Filter.1.Value.2=x` is a list in a list.

use std::collections::{BTreeMap, BTreeSet};

use ostler_sim::ec2::{DescribeQuery, Fault, Filter, Tags};

/// The parameters below a prefix.
pub(super) struct Parameters<'a> {
    all: &'a BTreeMap<String, String>,
    prefix: String,
}

impl<'a> Parameters<'a> {
    pub(super) fn new(all: &'a BTreeMap<String, String>) -> Self {
        Self { all, prefix: String::new() }
    }

    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        self.all.get(&format!("{}{name}", self.prefix)).map(String::as_str)
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.text(name).is_some_and(|text| text.eq_ignore_ascii_case("true"))
    }

    /// A number, or the error that EC2 gives for something else.
    pub(super) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Fault> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| {
            Fault::new(
                "InvalidParameterValue",
                format!("Value ({text}) for parameter {}{name} is invalid.", self.prefix),
            )
        })
    }

    /// The parameters of a structure.
    pub(super) fn below(&self, name: &str) -> Parameters<'a> {
        Parameters { all: self.all, prefix: format!("{}{name}.", self.prefix) }
    }

    /// The elements of a list of structures, in order.
    pub(super) fn list(&self, name: &str) -> Vec<Parameters<'a>> {
        self.indices(name).into_iter().map(|n| self.below(&format!("{name}.{n}"))).collect()
    }

    /// The elements of a list of texts, in order.
    pub(super) fn texts(&self, name: &str) -> Vec<String> {
        let indices = self.indices(name).into_iter();
        indices.filter_map(|n| self.text(&format!("{name}.{n}")).map(str::to_owned)).collect()
    }

    fn indices(&self, name: &str) -> BTreeSet<u32> {
        let prefix = format!("{}{name}.", self.prefix);
        let from = self.all.range(prefix.clone()..);
        from.take_while(|(key, _)| key.starts_with(&prefix))
            .filter_map(|(key, _)| key[prefix.len()..].split('.').next()?.parse().ok())
            .collect()
    }

    /// Ids, filters and page of a Describe call.
    pub(super) fn query(&self, ids: &str) -> Result<DescribeQuery, Fault> {
        let filter = |it: Parameters<'_>| Filter {
            name: it.text("Name").unwrap_or_default().to_owned(),
            values: it.texts("Value"),
        };
        Ok(DescribeQuery {
            ids: self.texts(ids),
            filters: self.list("Filter").into_iter().map(filter).collect(),
            most: self.number("MaxResults")?,
            next_token: self.text("NextToken").filter(|it| !it.is_empty()).map(str::to_owned),
        })
    }

    /// `Tag.1.Key`, `Tag.1.Value`; a value may be missing.
    pub(super) fn tags(&self) -> Vec<(String, Option<String>)> {
        let tag = |it: Parameters<'_>| {
            Some((it.text("Key")?.to_owned(), it.text("Value").map(str::to_owned)))
        };
        self.list("Tag").into_iter().filter_map(tag).collect()
    }

    /// The tags of `TagSpecification` for one type of resource.
    pub(super) fn tags_for(&self, resource: &str) -> Tags {
        self.list("TagSpecification")
            .iter()
            .filter(|it| it.text("ResourceType") == Some(resource))
            .flat_map(Parameters::tags)
            .map(|(key, value)| (key, value.unwrap_or_default()))
            .collect()
    }
}
