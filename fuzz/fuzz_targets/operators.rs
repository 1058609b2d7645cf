#![no_main]

libfuzzer_sys::fuzz_target!(init: foretype_fuzz::let_panics_unwind(), |data: &[u8]| {
    foretype_fuzz::bodies::operators(data)
});
