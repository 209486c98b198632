//! The set-up's page on loopback. What is answered is decided by the session; here are sockets alone.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{COOKIE, HOST, HeaderName, ORIGIN};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use ostler_core::setup::page::{Page, Stage};
use ostler_core::setup::session::{self, Session, Wish};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};

/// How long a browser may take to say what it wants.
const HEAD: Duration = Duration::from_secs(10);

/// Most bytes of a request's head that are read.
const MAX_HEAD: usize = 32 * 1024;

/// Connections at a time; a browser opens six.
const MAX_CONNECTIONS: usize = 32;

/// How long the last page stays, for a browser to fetch it.
const LINGER: Duration = Duration::from_secs(5);

/// A page that is being served. It ends with the process.
pub struct Server {
    session: Arc<Mutex<Session>>,
    wishes: mpsc::Receiver<Wish>,
    shown: watch::Receiver<&'static str>,
}

/// What a connection needs.
#[derive(Clone)]
struct Desk {
    session: Arc<Mutex<Session>>,
    wishes: mpsc::Sender<Wish>,
    shown: Arc<watch::Sender<&'static str>>,
}

/// A port on 127.0.0.1; any for 0. Not `localhost`, which another user's server on `::1` could answer for (RFC
/// 8252, section 8.3).
pub async fn listen(port: u16) -> anyhow::Result<(TcpListener, String)> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("open port {port} of 127.0.0.1: choose another with --port"))?;
    let host = listener.local_addr().context("the port's number")?.to_string();
    Ok((listener, host))
}

impl Server {
    /// Serves a session from now on.
    pub fn start(listener: TcpListener, session: Session) -> Self {
        let session = Arc::new(Mutex::new(session));
        // More than one wish is never open: each changes the stage, in which alone it is heard.
        let (sender, wishes) = mpsc::channel(1);
        let (shown_sender, shown) = watch::channel("");
        let desk =
            Desk { session: Arc::clone(&session), wishes: sender, shown: Arc::new(shown_sender) };
        tokio::spawn(accept(listener, desk));
        Self { session, wishes, shown }
    }

    /// Shows that stage from now on.
    pub fn show(&self, stage: Stage) {
        lock(&self.session).stage = stage;
    }

    /// The next thing that the operator wants.
    pub async fn wish(&mut self) -> Wish {
        match self.wishes.recv().await {
            Some(wish) => wish,
            // The acceptor never ends.
            None => std::future::pending().await,
        }
    }

    /// Shows a last stage, and waits until a browser has seen it.
    pub async fn end(mut self, stage: Stage) {
        let name = stage.name();
        self.show(stage);
        let seen = self.shown.wait_for(|shown| *shown == name);
        let _ = tokio::time::timeout(LINGER, seen).await;
    }
}

async fn accept(listener: TcpListener, desk: Desk) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let desk = desk.clone();
                tokio::spawn(async move {
                    serve(stream, desk).await;
                    drop(place);
                });
            }
            // Out of descriptors: others end.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn serve(stream: TcpStream, desk: Desk) {
    let service = service_fn(move |request| {
        let desk = desk.clone();
        async move { Ok::<_, Infallible>(desk.answer(&request).await) }
    });
    // A browser that goes away is no failure of ours.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(MAX_HEAD)
        // Or a browser's idle connections would hold all places.
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

impl Desk {
    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let header = |name: HeaderName| {
            request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
        };
        let asked = session::Request {
            method: request.method().as_str(),
            host: header(HOST),
            path: request.uri().path(),
            query: request.uri().query().unwrap_or(""),
            cookie: header(COOKIE),
            origin: header(ORIGIN),
        };
        let (page, wish, stage) = {
            let mut session = lock(&self.session);
            let (page, wish) = session.answer(&asked);
            (page, wish, session.stage.name())
        };
        if page.status == 200 && asked.path == "/" {
            self.shown.send_replace(stage);
        }
        if let Some(wish) = wish {
            // Nobody listens any more if the command is ending.
            let _ = self.wishes.send(wish).await;
        }
        respond(page)
    }
}

fn respond(page: Page) -> Response<Full<Bytes>> {
    let mut response = Response::builder().status(page.status);
    for (name, value) in page.headers {
        response = response.header(name, value);
    }
    let body = Full::new(Bytes::from(page.body));
    // Headers are our own and always fit.
    response.body(body).unwrap_or_else(|_| Response::new(Full::default()))
}

/// No panic leaves a session half-changed.
fn lock(session: &Mutex<Session>) -> MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}
