//! Texts to try.

/// Places where GPT-2's pre-tokenizer is particular.
pub(super) const TEXTS: &[&str] = &[
    "",
    " ",
    "  ",
    "a  b",
    "a   b",
    "a \n b",
    "a\n\nb",
    "a\t b",
    "a \u{a0}b",
    "a\u{3000}\u{3000}b",
    "a\u{3000} 日",
    "\n 's",
    "it's it'S it'x don't we're we've I'm we'll he'd",
    "'s 't 're 've 'm 'll 'd 'r 'v 'l 'rx 'vx 'lx '",
    "x're x'rest x'lle x'lx '''s '' 's' !'s 1's \n's  's",
    "'s's's 'r'e 'l'l 'r e 'rE 'll' ''ll",
    "U.S. 3.14 1,000 10% $5 a_b a-b a/b (a) \"a\"",
    "naïve café e\u{301} ñ Å ﬁ ß ŉ",
    "日本語のテキスト 한국어 中文,標點。",
    "Привет мир Ελληνικά עברית العربية हिन्दी ไทย",
    "👍🏽 👩‍👩‍👧 🇩🇪 ❤️ 😀😀",
    "½ ² Ⅷ ٣ 1²",
    "a\u{200b}b\u{200d}c\u{feff}d",
    "\u{1c}\u{1f}\u{85}\u{2028}\u{2029}\u{180e}",
    "Call +49 30 1234567, 12 345 678.90 EUR; US20240012345A1 v1.2.3 0x1F 10² ٣٤٥٦",
    "\u{1112}\u{1161}\u{11ab} 한 e\u{323}\u{301} ệ\u{301} \u{212b}\u{301}",
    "x<tool_call>y</tool_call><tool_call>>\u{338} sure, unsure measure",
    "\u{2581}a\u{2581}\u{2581}b",
    "\u{0}\u{7f}\u{fffd}\u{10ffff}",
];

const PIECES: &[&str] = &[
    " ",
    " ",
    " ",
    "  ",
    "\n",
    "\t",
    "\r\n",
    "\u{a0}",
    "\u{3000}",
    "\u{2009}",
    "\u{85}",
    "'",
    "'s",
    "'t",
    "'re",
    "'r",
    "'v",
    "'ve",
    "'l",
    "'ll",
    "'d",
    "'m",
    "s",
    "e",
    "l",
    "r",
    "the",
    "ing",
    "Electro",
    "membrane",
    "1",
    "42",
    "2024",
    "²",
    ".",
    "!!",
    "-",
    "(",
    "\"",
    "://",
    "é",
    "e\u{301}",
    "ß",
    "日",
    "本語",
    "の",
    "한국",
    "мир",
    "ال",
    "हि",
    "😀",
    "👩‍👧",
    "❤️",
    "\u{200b}",
    "123456",
    "7",
    "'S",
    "'Ll",
    "ſ",
    "\r\n\r\n",
    "_x",
    "/)\n",
    "\u{301}",
    "\u{323}",
    "\u{1112}\u{1161}",
    "각\u{11a8}",
    "\u{2581}",
    "    ",
    "sure",
    "<tool_call>",
    "<tool_ca",
    ">",
    "<|tool|>",
];

/// The words of technical phrases.
pub(super) const WORDS: &[&str] = &[
    "lithium",
    "ion",
    "battery",
    "polymer",
    "electrolyte",
    "membrane",
    "fuel",
    "cell",
    "catalyst",
    "amorphous",
    "silicon",
    "photovoltaic",
    "module",
    "semiconductor",
    "wafer",
    "etching",
    "plasma",
    "deposition",
    "nanoparticle",
    "graphene",
    "oxide",
    "thin",
    "film",
    "transistor",
    "convolutional",
    "neural",
    "network",
    "accelerator",
    "amazon",
    "gearbox",
    "planetary",
    "hydraulic",
    "actuator",
    "bearing",
    "turbine",
    "blade",
    "cooling",
    "heat",
    "exchanger",
    "monoclonal",
    "antibody",
    "receptor",
    "kinase",
    "inhibitor",
    "chromatography",
    "spectrometer",
    "ultrasonic",
    "transducer",
    "wireless",
    "charging",
    "antenna",
    "beamforming",
    "encryption",
    "key",
    "exchange",
    "blockchain",
    "autonomous",
    "vehicle",
    "lidar",
    "sensor",
    "fusion",
    "robotic",
    "gripper",
    "additive",
    "manufacturing",
    "crystallisation",
    "desalination",
    "reverse",
    "osmosis",
    "biodegradable",
    "packaging",
    "textile",
    "fibre",
    "CRISPR",
    "Cas9",
    "mRNA",
    "vaccine",
    "lipid",
    "5G",
    "OFDM",
    "MIMO",
    "LED",
    "OLED",
    "IPTV",
    "PID",
    "H2O2",
    "TiO2",
];

/// Sentences in several scripts.
pub(super) const MULTILINGUAL: &[&str] = &[
    "Vorrichtung zur Überwachung größerer Förderbänder",
    "procédé de fabrication d'une électrode à l'état solide",
    "método de producción de energía eólica en alta mar",
    "способ изготовления полупроводниковой пластины",
    "リチウムイオン二次電池用の正極活物質",
    "一种基于神经网络的图像识别方法及装置",
    "리튬 이온 전지용 분리막의 제조 방법",
    "συσκευή μέτρησης θερμοκρασίας",
    "جهاز لقياس درجة الحرارة",
    "तापमान मापने का उपकरण",
    "we're sure it's what they'd've wanted, isn't it?  Don't you'll say",
    "naïve  café\u{a0}– “quoted” ‘text’ … 20 °C ± 5 µm, x²+y²≤r² 👍🏽",
];

/// A seeded source of choices (SplitMix64).
pub(in super::super) struct Random(u64);

impl Random {
    pub(in super::super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(in super::super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((bits ^ bits >> 31) % bound as u64) as usize
    }

    pub(in super::super) fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// Any character, mostly from the lower planes.
    fn character(&mut self) -> char {
        let bound = *self.pick(&[0x80, 0x800, 0x3000, 0x11_0000]);
        char::from_u32(self.below(bound) as u32).unwrap_or('\u{fffd}')
    }

    /// Up to `pieces` pieces of text, chosen to meet at awkward places.
    pub(super) fn text(&mut self, pieces: usize) -> String {
        let mut text = String::new();
        for _ in 0..=self.below(pieces) {
            match self.below(6) {
                0 => text.push(self.character()),
                _ => text.push_str(self.pick::<&str>(PIECES)),
            }
        }
        text
    }

    /// A few technical words.
    pub(super) fn phrase(&mut self) -> String {
        let words: Vec<&str> = (0..self.below(4) + 2).map(|_| *self.pick(WORDS)).collect();
        words.join(" ")
    }

    /// A boolean search expression.
    pub(super) fn expression(&mut self) -> String {
        let operator = *self.pick(&["AND", "OR", "NOT", "$W3", "NEAR/5", "ADJ2"]);
        let (a, b, c) = (self.phrase(), *self.pick(WORDS), *self.pick(WORDS));
        match self.below(4) {
            0 => format!("TTL:({a}) {operator} ({b} OR {c})"),
            1 => format!("ti=\"{a}\" {operator} cpc=H01M{}/{:02}", self.below(50), self.below(100)),
            2 => format!("({b}* {operator} \"{a}\") NOT {c}.ti."),
            _ => format!("TAC:({b} {operator} {c}) AND APD:[20{:02}0101 TO 20241231]", self.below(24)),
        }
    }
}
