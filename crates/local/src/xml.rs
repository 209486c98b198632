//! Just enough XML to read the answers of the Query protocol (EC2, IAM, CloudFormation).

use quick_xml::Reader;
use quick_xml::events::Event;

/// An element: its local name, its text and its child elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Name without namespace prefix.
    pub name: String,
    /// Text directly inside, entities resolved.
    pub text: String,
    /// Child elements in order.
    pub children: Vec<Node>,
}

impl Node {
    /// Reads a document and gives its root. The error says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut reader = Reader::from_str(text);
        let mut stack = vec![Node::default()];
        loop {
            match reader.read_event().map_err(|error| format!("not XML: {error}"))? {
                Event::Start(start) => stack.push(named(start.local_name().as_ref())),
                Event::Empty(start) => add(&mut stack, named(start.local_name().as_ref())),
                Event::End(_) => {
                    let node = stack.pop().unwrap_or_default();
                    add(&mut stack, node);
                }
                Event::Text(text) => {
                    if let Some(node) = stack.last_mut() {
                        node.text.push_str(&text.xml10_content());
                    }
                }
                Event::CData(data) => {
                    if let Some(node) = stack.last_mut() {
                        node.text.push_str(&data.xml10_content());
                    }
                }
                Event::GeneralRef(entity) => {
                    let name = entity.xml10_content();
                    let resolved = match entity.resolve_char_ref() {
                        Ok(Some(character)) => character.to_string(),
                        _ => quick_xml::escape::resolve_predefined_entity(&name)
                            .ok_or_else(|| format!("not XML: unknown entity &{name};"))?
                            .to_owned(),
                    };
                    if let Some(node) = stack.last_mut() {
                        node.text.push_str(&resolved);
                    }
                }
                Event::Eof => break,
                _ => {}
            }
        }
        match (stack.len(), stack.pop().unwrap_or_default().children.into_iter().next()) {
            (1, Some(root)) => Ok(root),
            _ => Err("not XML: no single root element".to_owned()),
        }
    }

    /// The first element at a path of names below this one, e.g. `DescribeStacksResult/Stacks`.
    pub fn find(&self, path: &str) -> Option<&Node> {
        path.split('/')
            .try_fold(self, |node, name| node.children.iter().find(|child| child.name == name))
    }

    /// Text of the first element at a path; empty if there is none.
    pub fn text_at(&self, path: &str) -> &str {
        self.find(path).map_or("", |node| node.text.trim())
    }

    /// The children of the first element at a path, e.g. the `member`s of a list.
    pub fn list(&self, path: &str) -> &[Node] {
        self.find(path).map_or(&[], |node| &node.children)
    }
}

/// Text made safe inside an element or attribute.
pub fn escape(text: &str) -> String {
    quick_xml::escape::escape(text).into_owned()
}

fn named(name: &str) -> Node {
    Node { name: name.to_owned(), ..Node::default() }
}

fn add(stack: &mut [Node], node: Node) {
    if let Some(parent) = stack.last_mut() {
        parent.children.push(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_the_query_protocol_are_read() {
        let root = Node::parse(
            "<?xml version='1.0'?><r:A xmlns:r='u'><Stacks><member><Name>a &amp; b&#10;</Name></member>\
             <member><Name/></member></Stacks></r:A>",
        )
        .unwrap();
        assert_eq!(root.name, "A");
        assert_eq!(root.find("Stacks/member/Name").unwrap().text, "a & b\n");
        assert_eq!(root.list("Stacks").len(), 2);
        assert_eq!(root.text_at("Nowhere/else"), "");
        assert!(Node::parse("no").is_err() && Node::parse("<a>&unknown;</a>").is_err());
    }
}
