#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| foretype_fuzz::bodies::config(data));
