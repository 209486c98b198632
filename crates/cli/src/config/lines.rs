//! Where in a JSON text a value stands, so that a problem can name its line.

use serde_json::Value;

/// A step from a value to a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The value of a key.
    Key(String),
    /// The element at that place, from 0.
    At(usize),
}

impl From<&str> for Step {
    fn from(key: &str) -> Self {
        Self::Key(key.to_owned())
    }
}

impl From<usize> for Step {
    fn from(at: usize) -> Self {
        Self::At(at)
    }
}

/// From the whole text to a part of it.
pub type Path = Vec<Step>;

/// A path as people write it: `tiers[0].images[1]`; nothing for the whole text.
pub fn written(path: &[Step]) -> String {
    let mut out = String::new();
    for step in path {
        match step {
            Step::Key(key) if out.is_empty() => out.push_str(key),
            Step::Key(key) => {
                out.push('.');
                out.push_str(key);
            }
            Step::At(at) => out.push_str(&format!("[{at}]")),
        }
    }
    out
}

/// The lines of a text's parts.
#[derive(Debug, Default)]
pub struct Lines {
    /// Each part and its line, from 1; a key's own line where it has one.
    places: Vec<(Path, usize)>,
    /// Keys that stand twice in one object, the later ones: JSON readers take the last and say nothing.
    pub twice: Vec<Path>,
}

impl Lines {
    /// Of a text that is JSON. (Of another one, what has been understood until its fault.)
    pub fn of(text: &str) -> Self {
        let mut scan = Scan { text: text.as_bytes(), at: 0, line: 1, lines: Self::default() };
        scan.value(&mut Vec::new());
        scan.lines
    }

    /// The line of a part, or of the nearest whole around it that there is.
    pub fn line(&self, path: &[Step]) -> usize {
        (0..=path.len())
            .rev()
            .find_map(|end| {
                // The last one is the one that counts.
                let found = self.places.iter().rev().find(|(place, _)| place == &path[..end]);
                found.map(|(_, line)| *line)
            })
            .unwrap_or(1)
    }
}

struct Scan<'a> {
    text: &'a [u8],
    at: usize,
    line: usize,
    lines: Lines,
}

impl Scan<'_> {
    fn next(&mut self) -> Option<u8> {
        while let Some(&byte) = self.text.get(self.at) {
            match byte {
                b'\n' => self.line += 1,
                b' ' | b'\t' | b'\r' => {}
                byte => return Some(byte),
            }
            self.at += 1;
        }
        None
    }

    /// Steps over one sign if it is the next.
    fn take(&mut self, sign: u8) -> bool {
        let is = self.next() == Some(sign);
        self.at += usize::from(is);
        is
    }

    /// A text in quotes, or nothing.
    fn quoted(&mut self) -> Option<String> {
        if self.next() != Some(b'"') {
            return None;
        }
        let start = self.at;
        self.at += 1;
        while let Some(&byte) = self.text.get(self.at) {
            self.at += 1;
            match byte {
                b'\\' => self.at += 1,
                b'"' => break,
                _ => {}
            }
        }
        let whole = self.text.get(start..self.at)?;
        match serde_json::from_slice(whole) {
            Ok(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    fn value(&mut self, path: &mut Path) {
        let Some(first) = self.next() else { return };
        if !matches!(path.last(), Some(Step::Key(_))) {
            self.lines.places.push((path.clone(), self.line));
        }
        match first {
            b'{' => {
                self.at += 1;
                let mut keys: Vec<String> = Vec::new();
                while let Some(key) = self.quoted() {
                    path.push(Step::Key(key.clone()));
                    self.lines.places.push((path.clone(), self.line));
                    if keys.contains(&key) {
                        self.lines.twice.push(path.clone());
                    }
                    keys.push(key);
                    if self.take(b':') {
                        self.value(path);
                    }
                    path.pop();
                    if !self.take(b',') {
                        break;
                    }
                }
                self.take(b'}');
            }
            b'[' => {
                self.at += 1;
                let mut at = 0;
                while !self.take(b']') && self.next().is_some() {
                    let before = self.at;
                    path.push(Step::At(at));
                    self.value(path);
                    path.pop();
                    at += 1;
                    self.take(b',');
                    if self.at == before {
                        return;
                    }
                }
            }
            b'"' => {
                self.quoted();
            }
            _ => {
                let plain = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
                self.at += self.text[self.at..].iter().take_while(plain).count();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = r#"{
  "tiers": [
    {"name": "a", "labels": ["x",
      "y"]},
    {
      "name": "b\"]}", "max_runners": 5,
      "spot_breaker": {"failures":
         3},
      "name": "c"
    }
  ]
}"#;

    fn line(path: &[Step]) -> usize {
        Lines::of(TEXT).line(path)
    }

    #[test]
    fn each_part_has_the_line_of_its_key() {
        let tier = |at: usize| vec!["tiers".into(), Step::At(at)];
        let in_tier = |at: usize, more: &[Step]| [tier(at), more.to_vec()].concat();
        assert_eq!(line(&[]), 1);
        assert_eq!(line(&["tiers".into()]), 2);
        assert_eq!(line(&tier(0)), 3);
        assert_eq!(line(&in_tier(0, &["labels".into(), 1.into()])), 4);
        assert_eq!(line(&tier(1)), 5);
        assert_eq!(line(&in_tier(1, &["max_runners".into()])), 6);
        assert_eq!(line(&in_tier(1, &["spot_breaker".into(), "failures".into()])), 7);
        assert_eq!(line(&in_tier(1, &["not".into(), "there".into()])), 5, "the whole around it");
    }

    #[test]
    fn a_key_that_stands_twice_is_told_of_with_the_later_line() {
        let lines = Lines::of(TEXT);
        let path: Path = vec!["tiers".into(), 1.into(), "name".into()];
        assert_eq!(lines.twice, std::slice::from_ref(&path));
        assert_eq!(lines.line(&path), 9);
        assert_eq!(written(&path), "tiers[1].name");
    }

    proptest! {
        #[test]
        fn any_text_is_scanned_to_an_end(text in "[\\[\\]{}:,\"a1 \\n\\\\]{0,60}") {
            let lines = Lines::of(&text);
            prop_assert!(lines.places.iter().all(|(_, line)| *line <= text.lines().count().max(1)));
        }
    }
}
