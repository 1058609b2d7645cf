//! The parser: from an ONNX file to a network.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use crate::error::Error;
use crate::network::Network;
use crate::sys::{TrtParser, TrtParserError, call, made};
use crate::types::text;

/// Reads one ONNX file into a network.
///
/// The network can't be touched meanwhile:
///
/// ```compile_fail
/// fn both(network: &mut tensorrt::Network) {
///     let parser = tensorrt::Parser::new(network).unwrap();
///     network.set_decomposable().unwrap();
///     parser.parse_file("model.onnx".as_ref()).unwrap();
/// }
/// ```
#[doc(alias = "IParser")]
pub struct Parser<'net> {
    /// Kept by the network, because the weights that it reads are in its memory.
    raw: NonNull<TrtParser>,
    network: &'net mut Network,
}

impl<'net> Parser<'net> {
    /// # Errors
    /// No parser library beside TensorRT's; otherwise TensorRT's reasons.
    #[doc(alias = "createParser")]
    pub fn new(network: &'net mut Network) -> Result<Self, Error> {
        let library = network.library();
        let factory = library.parser_factory()?;
        let raw = library.attempt("createParser", |table| {
            // SAFETY: the factory is the library's own, the network is alive, and the logger lives for good.
            made(unsafe { call!(table, parser_create, factory.as_ptr(), network.as_ptr(), library.logger()) })
        })?;
        network.keep(raw);
        Ok(Self { raw, network })
    }

    /// Reads the file, and the weights beside it that it names.
    ///
    /// # Errors
    /// Every node that can't be had, with the reason. What was read until then is in the network.
    #[doc(alias = "parseFromFile")]
    pub fn parse_file(self, path: &Path) -> Result<(), Error> {
        let library = self.network.library();
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| Error::Argument("a file's name can't contain a zero byte".into()))?;
        let parsed = library.accept("IParser::parseFromFile", |table| {
            // SAFETY: the parser and its network are alive, and so is the name.
            unsafe { call!(table, parser_parse_file, self.raw.as_ptr(), name.as_ptr()) }
        });
        match parsed {
            Err(Error::Refused { flavour, messages: logged, .. }) => {
                let said = self.messages();
                let messages = if said.is_empty() { logged } else { said };
                Err(Error::Parse { flavour, path: path.to_owned(), messages })
            }
            other => other,
        }
    }

    fn messages(&self) -> Vec<String> {
        let table = self.network.library().table();
        // SAFETY: the parser is alive.
        let count = unsafe { call!(table, parser_errors, self.raw.as_ptr()) };
        (0..count).filter_map(|index| self.message(index)).collect()
    }

    fn message(&self, index: i32) -> Option<String> {
        let mut error = TrtParserError {
            code: 0,
            node: -1,
            description: std::ptr::null(),
            node_name: std::ptr::null(),
            node_operator: std::ptr::null(),
        };
        let table = self.network.library().table();
        // SAFETY: the parser is alive, and `error` can be written.
        let found = unsafe { call!(table, parser_error, self.raw.as_ptr(), index, &mut error) };
        // SAFETY: strings of the parser, which is alive and has not parsed since.
        let [description, name, operator] =
            [error.description, error.node_name, error.node_operator].map(|raw| unsafe { text(raw) });
        found.then(|| match operator.as_str() {
            "" => description,
            operator => format!("{operator} `{name}`: {description}"),
        })
    }
}
