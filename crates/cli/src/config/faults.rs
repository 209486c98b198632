//! All that is wrong with an object, found by the very judge that the functions use. That one stops at its
//! first problem and does not say where it is. So each part is mended by itself, until the verdict changes:
//! that part is at fault. It stays mended, and the next problem is looked for. Nothing is judged here, so
//! the command can never disagree with the functions, and the functions do not grow by it.

use serde_json::{Map, Value};

use super::lines::{Path, Step};
use super::words;

/// Faults of one object. More are a file of another kind.
const MAX_FAULTS: usize = 50;

/// A part that is at fault, and what the judge says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// From the object; empty for the whole of it.
    pub path: Path,
    /// The judge's words.
    pub text: String,
}

/// The faults of `value`, and the value with all of them mended. `sound` has valid values for the keys that
/// must be there; every other key may be left out.
pub fn all(
    value: &Value,
    sound: &Map<String, Value>,
    judge: impl Fn(&Value) -> Option<String>,
) -> (Vec<Fault>, Value) {
    let (mut faults, mut value) = (Vec::new(), value.clone());
    // Elements that were mended by being taken out: those behind them stand further on in the text.
    let mut out: Vec<(Step, Vec<usize>)> = Vec::new();
    while let Some(text) = judge(&value) {
        let changes = |mended: &Value| judge(mended).is_none_or(|other| other != text);
        let Some((mut path, mended)) = culprit(&value, sound, &text, changes) else {
            faults.push(Fault { path: vec![], text });
            return (faults, Value::Object(sound.clone()));
        };
        if let [list, Step::At(at)] = &mut path[..] {
            if !out.iter().any(|(known, _)| known == list) {
                out.push((list.clone(), vec![]));
            }
            for (_, gone) in out.iter_mut().filter(|(known, _)| known == list) {
                for before in gone.iter() {
                    *at += usize::from(*before <= *at);
                }
                gone.push(*at);
                gone.sort_unstable();
            }
        }
        faults.push(Fault { path, text });
        value = mended;
        if faults.len() == MAX_FAULTS {
            return (faults, Value::Object(sound.clone()));
        }
    }
    (faults, value)
}

fn culprit(
    value: &Value,
    sound: &Map<String, Value>,
    text: &str,
    changes: impl Fn(&Value) -> bool,
) -> Option<(Path, Value)> {
    let object = value.as_object()?;
    for (key, part) in object {
        // A key that is only misspelled is what it should have been, or its absence would be a second fault.
        if let Some(right) = misspelled(object, key, text) {
            let mut mended = object.clone();
            mended.remove(key);
            mended.insert(right, part.clone());
            return Some((vec![Step::Key(key.clone())], Value::Object(mended)));
        }
        let with = |part: Option<Value>| {
            let mut mended = object.clone();
            match part.or_else(|| sound.get(key).cloned()) {
                Some(part) => mended.insert(key.clone(), part),
                None => mended.remove(key),
            };
            Value::Object(mended)
        };
        if !changes(&with(None)) {
            continue;
        }
        // The one element or inner key without which the verdict is another. Where any would do, as in a
        // list that is too long, it is the whole of them.
        let inner: Vec<_> = without_one(part)
            .into_iter()
            .map(|(step, rest)| (step, with(Some(rest))))
            .filter(|(_, mended)| changes(mended))
            .collect();
        let whole = Step::Key(key.clone());
        // Some words begin with the inner key: `spot_breaker.within '…' must be …`.
        let named = text.strip_prefix(key.as_str()).and_then(|rest| rest.strip_prefix('.'));
        if let Some(name) = named.and_then(|rest| rest.split_once(' ')).map(|(name, _)| name) {
            return Some((vec![whole, Step::from(name)], with(None)));
        }
        return Some(match <[_; 1]>::try_from(inner) {
            Ok([(step, mended)]) => (vec![whole, step], mended),
            Err(_) => (vec![whole], with(None)),
        });
    }
    // Nothing that is there is at fault, so something is missing.
    sound.iter().filter(|(key, _)| !object.contains_key(*key)).find_map(|(key, part)| {
        let mut mended = object.clone();
        mended.insert(key.clone(), part.clone());
        let mended = Value::Object(mended);
        changes(&mended).then_some((vec![], mended))
    })
}

/// The right spelling of an unknown key, if the object has not got that one as well.
fn misspelled(object: &Map<String, Value>, key: &str, text: &str) -> Option<String> {
    let (wrong, allowed) = words::unknown_key(text)?;
    let right = words::nearest(wrong, &allowed)?;
    (wrong == key && !object.contains_key(right)).then(|| right.to_owned())
}

/// The value without each of its parts in turn.
fn without_one(value: &Value) -> Vec<(Step, Value)> {
    match value {
        Value::Array(list) => (0..list.len())
            .map(|at| {
                let mut rest = list.clone();
                rest.remove(at);
                (Step::At(at), Value::Array(rest))
            })
            .collect(),
        Value::Object(object) => object
            .keys()
            .map(|key| {
                let mut rest = object.clone();
                rest.remove(key);
                (Step::Key(key.clone()), Value::Object(rest))
            })
            .collect(),
        _ => vec![],
    }
}
