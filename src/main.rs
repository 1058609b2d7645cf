//! The `foretype` command. See the library for the map.

use std::io::Write;

use foretype::cli::{Cli, telemetry};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    scheduler::share_arenas();
    let cli = Cli::read();
    let done = telemetry::start(cli.log_format).and_then(|telemetry| {
        let done = cli.run();
        drop(telemetry);
        done
    });
    if let Err(error) = &done {
        eprintln!("foretype: {error}");
    }
    end(i32::from(done.is_err()))
}

/// Ends the process without running the destructors of native libraries. A thread may be inside ONNX Runtime, loading a
/// model that nobody needs any more, and would crash if the library were torn down beneath it.
fn end(code: i32) -> ! {
    let _ = std::io::stdout().flush();
    signal_hook::low_level::exit(code)
}
