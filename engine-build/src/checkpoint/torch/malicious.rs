//! Files that would run code, take memory or leave the folder in a reader that trusts them: each is refused.

use std::io::{Cursor, Write};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::legacy::MAGIC;
use super::read_tensors;

/// A name of what is wrong, the pickle, and what the refusal must say.
type Case = (&'static str, Vec<u8>, &'static str);

/// Pieces of a pickle.
fn pickle(pieces: &[&[u8]]) -> Vec<u8> {
    [b"\x80\x02", pieces.concat().as_slice(), b"."].concat()
}

/// A text, as protocol 2 writes it.
fn text(text: &str) -> Vec<u8> {
    [b"X", (text.len() as u32).to_le_bytes().as_slice(), text.as_bytes()].concat()
}

/// A state of one tensor `w`, of 2 x 3 numbers unless a piece says otherwise.
#[derive(Clone)]
struct State<'a> {
    class: &'a [u8],
    kind: &'a str,
    key: &'a str,
    elements: &'a [u8],
    offset: &'a [u8],
    shape: &'a [u8],
    strides: &'a [u8],
}

const STATE: State<'static> = State {
    class: b"ctorch\nFloatStorage\n",
    kind: "storage",
    key: "0",
    elements: b"K\x06",
    offset: b"K\0",
    shape: b"K\x02K\x03\x86",
    strides: b"K\x03K\x01\x86",
};

/// A whole number, as protocol 2 writes it.
pub(super) fn number(number: u64) -> Vec<u8> {
    [b"\x8a\x08", number.to_le_bytes().as_slice()].concat()
}

/// A state of one tensor `w` of f32, from the pieces of its pickle.
pub(super) fn state_of(elements: &[u8], offset: &[u8], shape: &[u8], strides: &[u8]) -> Vec<u8> {
    State { elements, offset, shape, strides, ..STATE }.pickle()
}

impl State<'_> {
    fn pickle(&self) -> Vec<u8> {
        let id = [b"(", &*text(self.kind), self.class, &*text(self.key), &*text("cpu"), self.elements, b"tQ"].concat();
        let call = b"ctorch._utils\n_rebuild_tensor_v2\n(";
        let rest = b"\x89ccollections\nOrderedDict\n)RtR";
        pickle(&[b"}", &text("w"), call, &id, self.offset, self.shape, self.strides, rest, b"s"])
    }
}

/// An archive of stored entries, in the folder `m`.
pub(super) fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        writer.start_file(*name, options).expect("started");
        writer.write_all(bytes).expect("written");
    }
    writer.finish().expect("finished").into_inner()
}

fn with_storage(pickle: &[u8]) -> Vec<u8> {
    archive(&[("m/data.pkl", pickle), ("m/byteorder", b"little"), ("m/data/0", &[0; 24])])
}

fn refusal(bytes: &[u8]) -> Option<String> {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(bytes).expect("written");
    read_tensors(&file, bytes.len() as u64).err().map(|error| error.to_string())
}

static SYSTEM: LazyLock<Vec<u8>> = LazyLock::new(|| text("touch executed"));

/// Pickles that name something to execute.
fn programs() -> Vec<Case> {
    let call = |name: &str| pickle(&[format!("c{name}\n").as_bytes(), &SYSTEM, b"\x85R"]);
    let stack = |module: &[u8], name: &[u8]| [b"\x80\x04", module, name, b"\x93", &*SYSTEM, b"\x85R."].concat();
    vec![
        ("os.system", call("os\nsystem"), "`os.system`"),
        ("posix.system", call("posix\nsystem"), "`posix.system`"),
        ("nt.system", call("nt\nsystem"), "`nt.system`"),
        ("eval", call("builtins\neval"), "`builtins.eval`"),
        ("exec", call("__builtin__\nexec"), "`__builtin__.exec`"),
        ("subprocess", call("subprocess\nPopen"), "`subprocess.Popen`"),
        ("runpy", call("runpy\n_run_code"), "`runpy._run_code`"),
        ("getattr", call("builtins\ngetattr"), "`builtins.getattr`"),
        ("import", call("importlib\nimport_module"), "`importlib.import_module`"),
        ("dotted name", call("collections\nOrderedDict.__init__.__globals__"), "`collections.OrderedDict.__init__"),
        ("dotted module", call("torch.serialization.os\nsystem"), "`torch.serialization.os.system`"),
        ("nested pickles", call("torch.storage\n_load_from_bytes"), "`torch.storage._load_from_bytes`"),
        ("torch.load", call("torch.serialization\nload"), "`torch.serialization.load`"),
        ("numpy", call("numpy.core.multiarray\n_reconstruct"), "`numpy.core.multiarray._reconstruct`"),
        ("copyreg", call("copyreg\n_reconstructor"), "`copyreg._reconstructor`"),
        ("control characters", call("o\x1b[31ms\nsystem"), "\\u{1b}"),
        ("STACK_GLOBAL", stack(b"\x8c\x02os", b"\x8c\x06system"), "`os.system`"),
        ("STACK_GLOBAL of numbers", stack(b"K\x01", b"K\x02"), "no text (STACK_GLOBAL)"),
        ("STACK_GLOBAL by memo", stack(b"\x8c\x02os\x94", b"\x8c\x06system\x940h\0h\x01"), "POP"),
        ("INST", pickle(&[b"(", &SYSTEM, b"ios\nsystem\n"]), "INST"),
        ("OBJ", pickle(&[b"(ccollections\nOrderedDict\n", &SYSTEM, b"o"]), "OBJ"),
        ("NEWOBJ", pickle(&[b"ccollections\nOrderedDict\n)\x81"]), "NEWOBJ"),
        ("NEWOBJ_EX", pickle(&[b"ccollections\nOrderedDict\n)}\x92"]), "NEWOBJ_EX"),
        ("EXT1", pickle(&[b"\x82\x01"]), "EXT1"),
        ("PERSID", pickle(&[b"Pos.system\n"]), "PERSID"),
        (
            "BUILD of a function",
            pickle(&[b"ccollections\nOrderedDict\n}", &text("__setstate__"), &SYSTEM, b"sb"]),
            "BUILD",
        ),
        ("BUILD with a slot state", pickle(&[b"}", &SYSTEM, b"}\x86b"]), "BUILD"),
        ("REDUCE of a text", pickle(&[&SYSTEM, &SYSTEM, b"\x85R"]), "REDUCE"),
        ("REDUCE of a call's value", pickle(&[b"ccollections\nOrderedDict\n)R)R"]), "REDUCE"),
        ("REDUCE with a dictionary", pickle(&[b"ccollections\nOrderedDict\n}R"]), "REDUCE"),
        ("REDUCE of a class of storages", pickle(&[b"ctorch\nFloatStorage\n)R"]), "storage is called"),
        (
            "OrderedDict of a function",
            pickle(&[b"ccollections\nOrderedDict\nctorch\nFloatStorage\n\x85R"]),
            "arguments",
        ),
        (
            "a parameter of no tensor",
            pickle(&[b"ctorch._utils\n_rebuild_parameter\n", &SYSTEM, b"NN\x87R"]),
            "arguments",
        ),
    ]
}

/// Pickles that are broken, or larger than they look.
fn bombs() -> Vec<Case> {
    let doubling: Vec<u8> =
        (0..64_u8).flat_map(|n| [b"h", &[n][..], b"h", &[n], b"\x86q", &[n + 1]].concat()).collect();
    let doubled = pickle(&[b")q\0", &doubling]);
    vec![
        ("nothing", Vec::new(), "ends too early"),
        ("no end", b"\x80\x02}".to_vec(), "ends too early"),
        ("protocol 0", b"\x80\0}.".to_vec(), "protocol"),
        ("empty stack", pickle(&[b"R"]), "stack is empty"),
        ("a mark in the way", pickle(&[b"}(s"]), "stack is empty"),
        ("no mark", pickle(&[b"}u"]), "no beginning"),
        ("odd items", pickle(&[b"}(", &SYSTEM, b"u"]), "no value"),
        ("a huge text", pickle(&[b"X\xff\xff\xff\xff"]), "ends too early"),
        ("a huge text of protocol 4", pickle(&[b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f"]), "BINUNICODE8"),
        ("a huge number", pickle(&[b"\x8a\xff", &[1; 255]]), "64 bits"),
        ("a huge number of protocol 0", pickle(&[b"L", &[b'9'; 9999], b"L\n"]), "LONG"),
        ("an unknown memo", pickle(&[b"j\xff\xff\xff\xff"]), "hasn't kept"),
        ("a sparse memo", pickle(&[b"}r\xff\xff\xff\xff0"]), "POP"),
        ("a memo that doubles", doubled, "it holds a list"),
        ("a list in itself", pickle(&[b"]q\0h\0a"]), "it holds a list"),
        ("a dictionary in itself", pickle(&[b"}q\0", &text("w"), b"h\0s"]), "a dictionary under `w`"),
        ("a deep tuple", pickle(&[b")", &[0x85; 1 << 20]]), "it holds a list"),
        ("ever more values", pickle(&[&b"N".repeat(5 << 20)]), "more than 2097152 values"),
        ("ever more memos", pickle(&[b"N", &b"q\0".repeat(3 << 20)]), "more than 2097152 values"),
        ("ever more marks", pickle(&[&b"(".repeat(3 << 20)]), "more than 2097152 values"),
        ("a name without end", pickle(&[b"c", &[b'a'; 5000]]), "no end"),
        ("no UTF-8", pickle(&[b"U\x02\xff\xfe"]), "no UTF-8"),
        ("unknown opcode", pickle(&[b"\xff"]), "opcode 0xff"),
        ("bytes", pickle(&[b"C\x01x"]), "SHORT_BINBYTES"),
        ("buffers", pickle(&[b"\x97"]), "NEXT_BUFFER"),
    ]
}

/// States whose tensors aren't where they say.
fn views() -> Vec<Case> {
    let of = |state: State| state.pickle();
    let huge = b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f";
    vec![
        ("no tensor", pickle(&[b"}", &text("w"), &SYSTEM, b"s"]), "a text under `w`"),
        ("no names", pickle(&[b"}K\x01K\x02s"]), "no names"),
        ("a number as the state", pickle(&[b"K\x01"]), "holds a number"),
        ("another persistent id", of(State { kind: "module", ..STATE }), "names no storage"),
        ("an id that is a text", pickle(&[&SYSTEM, b"Q"]), "no tuple"),
        ("an id that is too short", pickle(&[&text("storage"), b"\x85Q"]), "not of the form"),
        ("another class", of(State { class: b"ccollections\nOrderedDict\n", ..STATE }), "not of the form"),
        ("a class of another type", of(State { class: b"ctorch\nQInt8Storage\n", ..STATE }), "`torch.QInt8Storage`"),
        ("a path as a key", of(State { key: "../../etc/passwd", ..STATE }), "key of a storage"),
        ("an absolute key", of(State { key: "/etc/passwd", ..STATE }), "key of a storage"),
        ("a storage that is missing", of(State { key: "7", ..STATE }), "`7` is missing"),
        ("more elements than bytes", of(State { elements: b"K\x07", ..STATE }), "only 24 bytes"),
        ("2^63 elements", of(State { elements: huge, ..STATE }), "only 24 bytes"),
        ("-1 elements", of(State { elements: b"J\xff\xff\xff\xff", ..STATE }), "not be negative"),
        ("an offset beyond", of(State { offset: b"K\x01", ..STATE }), "beyond its storage"),
        ("an offset near 2^63", of(State { offset: huge, ..STATE }), "beyond its storage"),
        ("a negative offset", of(State { offset: b"J\xff\xff\xff\xff", ..STATE }), "not be negative"),
        ("a shape beyond", of(State { shape: b"K\x03K\x03\x86", ..STATE }), "more elements"),
        (
            "a shape that overflows",
            of(State { shape: b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86", ..STATE }),
            "more elements",
        ),
        ("strides beyond", of(State { strides: b"K\x04K\x01\x86", ..STATE }), "beyond its storage"),
        (
            "strides that overflow",
            of(State { strides: b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\x01\x86", ..STATE }),
            "beyond",
        ),
        ("a stride less", of(State { strides: b"K\x03\x85", ..STATE }), "a stride for each"),
        ("a shape that is no tuple", of(State { shape: b"K\x06", ..STATE }), "tuple of whole numbers"),
    ]
}

#[test]
fn pickles_that_no_model_needs_are_refused_and_nothing_is_executed() {
    assert_eq!(refusal(&with_storage(&STATE.pickle())), None, "what the cases are made from");
    let cases: Vec<Case> = programs().into_iter().chain(bombs()).chain(views()).collect();
    assert!(cases.len() >= 80, "{}", cases.len());
    for (name, pickle, fragment) in cases {
        let started = Instant::now();
        let said = refusal(&with_storage(&pickle)).unwrap_or_else(|| panic!("{name} is read"));
        assert!(said.contains(fragment), "{name}: {fragment:?} is not in: {said}");
        assert!(!said.contains('\n') && !said.contains('\x1b') && said.len() < 250, "{name}: {said}");
        assert!(started.elapsed() < Duration::from_secs(5), "{name} takes {:?}", started.elapsed());
        assert!(!std::path::Path::new("executed").exists(), "{name}");
        // The same in the old format, behind its first two pickles and a description of the machine.
        let old = [&MAGIC[..], b"\x80\x02M\xe9\x03.", b"\x80\x02}.", &pickle, b"\x80\x02].", &[0; 24]].concat();
        assert!(refusal(&old).is_some(), "{name} is read in the old format");
    }
}

#[test]
fn archives_that_pytorch_does_not_write_are_refused() {
    let good = STATE.pickle();
    let whole = with_storage(&good);
    let cut = |bytes: usize| whole[..bytes].to_vec();
    let mut compressed = whole.clone();
    // The method of the second entry's central directory record, and of its own header.
    for at in 0..compressed.len() - 4 {
        match &compressed[at..at + 4] {
            b"PK\x01\x02" => compressed[at + 10] = 8,
            b"PK\x03\x04" => compressed[at + 8] = 8,
            _ => {}
        }
    }
    let mut beyond = whole.clone();
    let directory = beyond.windows(4).rposition(|bytes| bytes == b"PK\x01\x02").expect("a directory");
    beyond[directory + 20..directory + 28].copy_from_slice(&[0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0x7f]);
    let mut checksum = whole.clone();
    let at = checksum.windows(8).position(|bytes| bytes == b"_rebuild").expect("the pickle");
    checksum[at] = b'-';
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", b"PK".to_vec(), "archive is damaged"),
        ("cut in half", cut(whole.len() / 2), "archive is damaged"),
        ("cut at the end", cut(whole.len() - 1), "archive is damaged"),
        ("no pickle", archive(&[("m/data/0", &[0; 24])]), "one folder with a file data.pkl"),
        ("two pickles", archive(&[("a/data.pkl", &good), ("b/data.pkl", &good)]), "one folder"),
        ("a deeper pickle", archive(&[("../m/data.pkl", &good)]), "one folder"),
        ("a storage in another folder", archive(&[("m/data.pkl", &good), ("n/data/0", &[0; 24])]), "`0` is missing"),
        ("a storage above", archive(&[("m/data.pkl", &good), ("m/data/../0", &[0; 24])]), "`0` is missing"),
        ("big-endian", archive(&[("m/data.pkl", &good), ("m/byteorder", b"big")]), "big-endian"),
        ("compressed, as a zip bomb is", compressed, "is compressed"),
        ("a size beyond the file", beyond, "beyond its end"),
        ("a pickle of another checksum", checksum, "checksum"),
        ("a huge pickle", archive(&[("m/data.pkl", &vec![b'N'; 17 << 20])]), "has 17825792 bytes"),
        ("neither", b"\x93NUMPY".to_vec(), "neither"),
        ("a bare pickle", STATE.pickle(), "neither"),
        ("shorter than anything", b"P".to_vec(), "neither"),
    ];
    for (name, bytes, fragment) in cases {
        let said = refusal(&bytes).unwrap_or_else(|| panic!("{name} is read"));
        assert!(said.to_lowercase().contains(&fragment.to_lowercase()), "{name}: {fragment:?} is not in: {said}");
    }
}
