//! Which keys of a keyboard lie beside each other. Scripts that have no layout here have no neighbours.

/// A keyboard layout of the Latin script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// The layout of most English-speaking countries.
    #[default]
    Qwerty,
    /// The layout of German-speaking countries.
    Qwertz,
    /// The layout of French-speaking countries.
    Azerty,
}

impl Layout {
    /// The rows of keys, top to bottom. Each row begins half a key further right than the one above it.
    fn rows(self) -> [&'static str; 4] {
        match self {
            Self::Qwerty => ["1234567890-=", "qwertyuiop[]", "asdfghjkl;'", "zxcvbnm,./"],
            Self::Qwertz => ["1234567890ß", "qwertzuiopü", "asdfghjklöä", "yxcvbnm,.-"],
            Self::Azerty => ["1234567890", "azertyuiop", "qsdfghjklm", "wxcvbn,;:!"],
        }
    }

    /// The row and the column of a key. Of a letter: of its lower case.
    fn position(self, key: char) -> Option<(usize, usize)> {
        let key = key.to_lowercase().next()?;
        let column = |row: &str| row.chars().position(|c| c == key);
        self.rows().iter().enumerate().find_map(|(row, keys)| Some((row, column(keys)?)))
    }

    /// Whether two different keys touch each other: at most six do.
    pub fn are_neighbours(self, a: char, b: char) -> bool {
        let (Some((row_a, column_a)), Some((row_b, column_b))) = (self.position(a), self.position(b)) else {
            return false;
        };
        let ((upper, upper_column), (lower, lower_column)) =
            if row_a <= row_b { ((row_a, column_a), (row_b, column_b)) } else { ((row_b, column_b), (row_a, column_a)) };
        match lower - upper {
            0 => upper_column.abs_diff(lower_column) == 1,
            // The lower row lies half a key to the right.
            1 => upper_column == lower_column || upper_column == lower_column + 1,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbours(layout: Layout, key: char) -> String {
        let all = layout.rows().concat();
        let mut found: Vec<char> = all.chars().filter(|&other| layout.are_neighbours(key, other)).collect();
        found.sort_unstable();
        found.into_iter().collect()
    }

    #[test]
    fn keys_have_the_neighbours_that_lie_around_them() {
        assert_eq!(neighbours(Layout::Qwerty, 'g'), "bfhtvy");
        assert_eq!(neighbours(Layout::Qwerty, 'S'), "adewxz");
        assert_eq!(neighbours(Layout::Qwerty, 'q'), "12aw");
        assert_eq!(neighbours(Layout::Qwertz, 't'), "56fgrz");
        assert_eq!(neighbours(Layout::Azerty, 'a'), "12qz");
        assert_eq!(neighbours(Layout::Qwerty, '字'), "");
        assert!(!Layout::Qwerty.are_neighbours('g', 'g'));
    }

    #[test]
    fn neighbourhood_is_mutual() {
        for layout in [Layout::Qwerty, Layout::Qwertz, Layout::Azerty] {
            let keys = layout.rows().concat();
            for a in keys.chars() {
                for b in keys.chars() {
                    assert_eq!(layout.are_neighbours(a, b), layout.are_neighbours(b, a), "{layout:?} {a} {b}");
                }
            }
        }
    }
}
