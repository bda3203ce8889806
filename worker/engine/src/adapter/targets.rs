//! Which layers an adapter's config means, by PEFT's rules; what means nothing is an error.

use regex::Regex;
use trainyard_shared::training::TargetModules;

use super::AdapterConfig;
use crate::model::{ModelConfig, Projection};

/// A layer that gets a pair.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Target {
    /// The decoder layer, from 0.
    pub layer: usize,
    /// Which of its linear layers.
    pub projection: Projection,
    /// Rank of the pair.
    pub rank: usize,
    /// What B A x is multiplied by.
    pub scale: f64,
}

/// Resolves a config against a model.
///
/// Names in a list match a layer of that name or one that ends with `.` and the name; one text matches
/// as a regular expression over the whole name. Keys of `rank_pattern` and `alpha_pattern` are regular
/// expressions that match the end of a name from a dot on, or with `^` the whole name. Every name and
/// key must match some layer.
pub(super) fn resolve(config: &AdapterConfig, model: &ModelConfig) -> Result<Vec<Target>, String> {
    let layers: Vec<(usize, Projection, String)> = (0..model.num_hidden_layers)
        .flat_map(|layer| {
            Projection::ALL.map(|projection| (layer, projection, projection.full_name(layer)))
        })
        .collect();
    let wanted = Selector::new("target_modules", &config.target_modules)?;
    wanted.check(layers.iter().map(|(_, _, name)| name.as_str()))?;
    let excluded = config
        .exclude_modules
        .as_ref()
        .map(|names| Selector::new("exclude_modules", names))
        .transpose()?;
    // PEFT looks at layer indices only where the targets are a list.
    let indices = config
        .layers_to_transform
        .as_ref()
        .filter(|_| matches!(config.target_modules, TargetModules::Names(_)));
    let ranks = Patterns::new("rank_pattern", &config.rank_pattern)?;
    let alphas = Patterns::new("alpha_pattern", &config.alpha_pattern)?;
    let mut targets = Vec::new();
    let mut names = Vec::new();
    for (layer, projection, name) in &layers {
        let is_excluded = excluded
            .as_ref()
            .is_some_and(|excluded| excluded.matches(name));
        if !wanted.matches(name)
            || is_excluded
            || indices.is_some_and(|indices| !indices.contains(layer))
        {
            continue;
        }
        let rank = ranks.of(name).unwrap_or(config.r);
        if rank == 0 {
            return Err(format!("rank_pattern: rank 0 for {name}"));
        }
        let alpha = alphas.of(name).unwrap_or(config.lora_alpha);
        let scale = alpha
            / if config.use_rslora {
                (rank as f64).sqrt()
            } else {
                rank as f64
            };
        targets.push(Target {
            layer: *layer,
            projection: *projection,
            rank,
            scale,
        });
        names.push(name.as_str());
    }
    if targets.is_empty() {
        return Err("target_modules: no layer is left".into());
    }
    ranks.check(&names)?;
    alphas.check(&names)?;
    Ok(targets)
}

/// A choice of layers by name.
enum Selector<'a> {
    All,
    Names(&'a str, &'a [String]),
    Pattern(&'a str, &'a str, Regex),
}

impl<'a> Selector<'a> {
    fn new(field: &'a str, targets: &'a TargetModules) -> Result<Self, String> {
        Ok(match targets {
            TargetModules::AllLinear => Self::All,
            TargetModules::Names(names) => Self::Names(field, names),
            TargetModules::Pattern(pattern) => {
                Self::Pattern(field, pattern, whole(field, pattern)?)
            }
        })
    }

    fn matches(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Names(_, names) => names.iter().any(|wanted| ends_with_name(name, wanted)),
            Self::Pattern(_, _, pattern) => pattern.is_match(name),
        }
    }

    /// That everything in the selector matches one of `layers`.
    fn check<'n>(&self, layers: impl Iterator<Item = &'n str> + Clone) -> Result<(), String> {
        match self {
            Self::All => Ok(()),
            Self::Names(field, names) => {
                let unmatched: Vec<&str> = names
                    .iter()
                    .filter(|wanted| !layers.clone().any(|name| ends_with_name(name, wanted)))
                    .map(String::as_str)
                    .collect();
                if unmatched.is_empty() {
                    Ok(())
                } else {
                    Err(format!(
                        "{field}: no linear layer is called {}",
                        unmatched.join(", ")
                    ))
                }
            }
            Self::Pattern(field, text, pattern) => {
                let mut layers = layers;
                match layers.any(|name| pattern.is_match(name)) {
                    true => Ok(()),
                    false => Err(format!(
                        "{field}: {text:?} matches no linear layer (it must match the whole name)"
                    )),
                }
            }
        }
    }
}

/// Values by patterns of names; the first that matches counts.
struct Patterns<'a, T> {
    field: &'a str,
    patterns: Vec<(&'a str, Regex, T)>,
}

impl<'a, T: Copy> Patterns<'a, T> {
    fn new(
        field: &'a str,
        patterns: &'a std::collections::BTreeMap<String, T>,
    ) -> Result<Self, String> {
        let compile = |(key, value): (&'a String, &T)| {
            Ok((
                key.as_str(),
                whole(field, &format!(r"(.*\.)?({key})"))?,
                *value,
            ))
        };
        Ok(Self {
            field,
            patterns: patterns
                .iter()
                .map(compile)
                .collect::<Result<_, String>>()?,
        })
    }

    fn of(&self, name: &str) -> Option<T> {
        self.patterns
            .iter()
            .find(|(_, pattern, _)| pattern.is_match(name))
            .map(|(_, _, value)| *value)
    }

    fn check(&self, names: &[&str]) -> Result<(), String> {
        match self
            .patterns
            .iter()
            .find(|(_, pattern, _)| !names.iter().any(|name| pattern.is_match(name)))
        {
            Some((key, _, _)) => Err(format!(
                "{}: {key:?} matches no layer of the adapter",
                self.field
            )),
            None => Ok(()),
        }
    }
}

fn ends_with_name(name: &str, wanted: &str) -> bool {
    name == wanted
        || name
            .strip_suffix(wanted)
            .is_some_and(|front| front.ends_with('.'))
}

fn whole(field: &str, pattern: &str) -> Result<Regex, String> {
    Regex::new(&format!("^(?:{pattern})$"))
        .map_err(|_| format!("{field}: {pattern:?} is no regular expression"))
}
