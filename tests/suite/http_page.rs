//! The page for people: off unless it is asked for, small, and closed to everything that isn't this server's.

use std::sync::Arc;

use foretype::models::ModelState;

use crate::http_client::{RegistryServer, error};
use crate::support::{TestServer, fake_engine};

const FILES: [(&str, &str); 4] = [
    ("/", "text/html; charset=utf-8"),
    ("/page.css", "text/css; charset=utf-8"),
    ("/page.js", "text/javascript; charset=utf-8"),
    ("/costs.js", "text/javascript; charset=utf-8"),
];

#[test]
fn the_page_is_small_and_closed() {
    let server = TestServer::with(fake_engine());
    let mut bytes = 0;
    for (path, content_type) in FILES {
        let answer = server.send("GET", path, None, b"");
        assert_eq!((answer.status, answer.headers["content-type"].to_str().unwrap()), (200, content_type));
        let policy = answer.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"), "{policy}");
        for (name, value) in [("x-content-type-options", "nosniff"), ("referrer-policy", "no-referrer")] {
            assert_eq!(answer.headers[name], value);
        }
        for elsewhere in ["http://", "https://", "src=\"//", "url(", "onclick=", "<style", "style=", "innerHTML"] {
            // The one address is a namespace, which nothing fetches.
            let text = answer.text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains(elsewhere), "{path} has {elsewhere}");
        }
        assert_eq!(server.send("HEAD", path, None, b"").status, 200);
        let answer = server.send("PUT", path, None, b"");
        // Clients of Text Generation Inference post to the root.
        let allowed = if path == "/" { "GET, HEAD, POST" } else { "GET, HEAD" };
        assert_eq!((answer.status, &answer.headers["allow"]), (405, &allowed.parse().unwrap()));
        bytes += server.send("GET", path, None, b"").text.len();
    }
    assert!(bytes < 60_000, "{bytes} bytes");
}

#[test]
fn without_the_page_its_paths_say_how_to_get_it() {
    let server = TestServer::start_with(ModelState::Ready(Arc::new(fake_engine()).into()), false);
    for (path, _) in FILES {
        let (status, kind, message) = error(&server.send("GET", path, None, b""));
        assert_eq!((status, kind.as_str()), (404, "not_found"));
        assert!(message.contains("--page") && message.contains("FORETYPE_PAGE=true"), "{message}");
    }
}

#[test]
fn the_page_knows_whether_models_have_names() {
    let html = TestServer::with(fake_engine()).send("GET", "/", None, b"").text;
    assert!(html.contains(r#"data-models="one""#));
    let limits = foretype::models::RegistryLimits { bytes: 1 << 20, models: 1 };
    let html = RegistryServer::start(Box::new(|_| Ok(fake_engine())), limits).call("GET", "/").text;
    assert!(html.contains(r#"data-models="by-name""#) && !html.contains(r#"data-models="one""#));
}
