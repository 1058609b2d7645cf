//! Whatever bytes the files hold, a build ends in a bundle or an error.

use std::fs;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::tiny::{Tiny, config, serialize, tensors};

/// JSON that is often nearly right: the numbers and words that configurations hold.
fn json_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..40i64).prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        "[a-z_]{0,8}".prop_map(Value::from),
        proptest::collection::vec((0..300i64).prop_map(Value::from), 0..3).prop_map(Value::from),
    ]
}

fn field() -> impl Strategy<Value = String> {
    let names: Vec<String> = config().as_object().expect("an object").keys().cloned().collect();
    proptest::sample::select(names)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn any_config(bytes in proptest::collection::vec(any::<u8>(), 1..200)) {
        let tiny = Tiny::new();
        tiny.write("config.json", bytes);
        prop_assert!(tiny.build().is_err());
    }

    #[test]
    fn any_fields(changes in proptest::collection::vec((field(), json_value()), 1..4)) {
        let tiny = Tiny::new();
        for (field, value) in changes {
            tiny.set(&field, value);
        }
        let built = tiny.build();
        prop_assert_eq!(built.is_ok(), tiny.out().exists());
    }

    #[test]
    fn any_weights(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let tiny = Tiny::new();
        tiny.write("model.safetensors", bytes);
        prop_assert!(tiny.build().is_err());
    }

    #[test]
    fn any_flipped_bit(position in any::<proptest::sample::Index>(), bit in 0..8u8, cut in any::<bool>()) {
        let tiny = Tiny::new();
        let mut bytes = serialize(&tensors("transformer."));
        let at = position.index(if cut { bytes.len() } else { bytes.len().min(3000) });
        if cut { bytes.truncate(at) } else { bytes[at] ^= 1 << bit }
        tiny.write("model.safetensors", bytes);
        let built = tiny.build();
        prop_assert!(!(cut && built.is_ok()));
        prop_assert_eq!(built.is_ok(), tiny.out().exists());
        prop_assert!(fs::read_dir(tiny.root()).expect("the root").count() <= 2);
    }
}
