//! `foretype local-endpoint`: Amazon SageMaker's runtime API on this machine.

use std::error::Error;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

use clap::Args;

use crate::local_endpoint::{self, Options};

/// Arguments of `local-endpoint`.
#[derive(Clone, Debug, Args)]
pub struct LocalEndpointArgs {
    /// The server or container to stand in front of. Repeat it, or separate URLs by commas, for an endpoint of several
    /// instances: a session stays on the one that opened it.
    #[arg(
        long,
        env = "FORETYPE_TARGET",
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:8080"
    )]
    target: Vec<String>,
    /// Address to listen on.
    #[arg(long, env = "FORETYPE_ENDPOINT_HOST", value_name = "IP", default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one and prints it.
    #[arg(long, env = "FORETYPE_ENDPOINT_PORT", value_name = "PORT", default_value_t = 8081)]
    port: u16,
    /// The only endpoint name that is known. Default: any name will do.
    #[arg(long, env = "FORETYPE_ENDPOINT", value_name = "NAME")]
    endpoint: Option<String>,
    /// Time for an answer to begin, in seconds; 60 is SageMaker's.
    #[arg(long, env = "FORETYPE_ENDPOINT_TIMEOUT_SECONDS", value_name = "SECONDS", default_value_t = 60)]
    timeout_seconds: u64,
}

impl LocalEndpointArgs {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        let address = SocketAddr::new(self.host, self.port);
        let listener =
            TcpListener::bind(address).map_err(|e| format!("can't listen on {address}: {e}; name another --port"))?;
        let url = format!("http://{}", listener.local_addr()?);
        let options = Options {
            targets: self.target,
            endpoint: self.endpoint,
            timeout: Duration::from_secs(self.timeout_seconds),
        };
        println!("{url} speaks the SageMaker runtime API for {}. In Python:\n", options.targets.join(", "));
        println!("  boto3.client(\"sagemaker-runtime\", endpoint_url=\"{url}\", region_name=\"us-east-1\")\n");
        actix_web::rt::System::new().block_on(async move { local_endpoint::start(listener, &options)?.await })?;
        Ok(())
    }
}
