//! Lists the branches that the use cases of `ostler-core` mark, so that one that no history takes is known.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

/// How a mark stands in the sources.
const MARK: &str = "reached(\"";

fn main() -> Result<(), Box<dyn Error>> {
    let core = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../core/src");
    println!("cargo:rerun-if-changed={}", core.display());
    let mut branches = Vec::new();
    read(&core, &mut branches)?;
    branches.sort();
    if let Some(twice) = branches.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("two branches of ostler-core are called '{}'", twice[0]).into());
    }
    let mut list = String::from("&[");
    for branch in branches {
        write!(list, "{branch:?}, ")?;
    }
    list.push(']');
    fs::write(Path::new(&env::var("OUT_DIR")?).join("branches.rs"), list)?;
    Ok(())
}

fn read(folder: &Path, branches: &mut Vec<String>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read(&path, branches)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)?;
            let marks = text.split(MARK).skip(1).filter_map(|rest| rest.split_once('"'));
            branches.extend(marks.map(|(name, _)| name.to_owned()));
        }
    }
    Ok(())
}
