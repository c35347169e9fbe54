//! Choices that are written as one word: reading, printing, and the error that lists what is known.

/// A word that is not one of those expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is not known; expected {expected}")]
pub struct UnknownWord {
    word: String,
    expected: String,
}

impl UnknownWord {
    /// `word` is what was read, however long; `expected` are the words that would do.
    pub fn new(word: &str, expected: &[&str]) -> Self {
        Self { word: word.chars().take(80).collect(), expected: expected.join(", ") }
    }
}

/// Makes an enum whose values are words, with `word()`, `ALL`, `FromStr` and `Display`.
#[macro_export]
macro_rules! word_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$variant_meta])* $variant,)+ }

        impl $name {
            /// Every value, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The word of this value.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::word::UnknownWord;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    other => Err($crate::word::UnknownWord::new(other, &[$($word),+])),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}
pub use word_enum;

#[cfg(test)]
mod tests {
    use crate::LockFormat;

    #[test]
    fn a_word_reads_as_it_prints_and_an_unknown_one_lists_what_is_known() {
        for format in [LockFormat::Uid, LockFormat::Triple, LockFormat::Timestamp] {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        let error = "both".repeat(100).parse::<LockFormat>().unwrap_err().to_string();
        assert!(error.ends_with("is not known; expected uid, triple, timestamp") && error.len() < 140, "{error}");
    }
}
