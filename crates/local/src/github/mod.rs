//! GitHub on loopback: the model of `ostler_sim::github` behind HTTP, with real signatures and tokens.
//!
//! - `/api/v3/…` is the REST API as on GitHub Enterprise Server,
//! - `/_runner/…` is what the stand-in for `actions/runner` speaks,
//! - `/settings/apps/…`, `/organizations/…/settings/apps/…` and `/apps/…` are the web pages on which an App is made from a
//!   manifest, and installed,
//! - `/actions/runner/releases/download/…` has its archive,
//! - `/_admin/…` is for whoever plays the world: jobs, faults, state.
//!
//! The rules are the model's; here are only HTTP, keys, real time and the delivery of webhooks. The model's
//! lock is never held across an await.

mod admin;
mod api;
mod apps;
mod auth;
mod protocol;
mod webhooks;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::Bytes;
use axum::response::Response;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use ostler_core::time::Timestamp;
use ostler_sim::github as model;
use ostler_sim::github::{ApiError, FaultRule, Job, JobSpec, Options, RunnerView};
use tokio::net::TcpListener;

use crate::time::WorldClock;

pub use webhooks::{Delivery, DeliveryFaults, DeliveryPlan, RawHook};

/// GitHub's refusal as an error of whoever plays the world.
pub fn refused(error: ApiError) -> anyhow::Error {
    anyhow::anyhow!("the local GitHub refused: {} {}", error.status, error.message)
}

/// How often jobs are given to runners and timers are looked at, in real time. At 60 times speed that is
/// every three seconds, about what GitHub takes.
const TICK: Duration = Duration::from_millis(50);
/// A stand-in asks again within 2 s of real time, so one that has been silent for five times that is gone.
const SILENCE: Duration = Duration::from_secs(10);

/// What a GitHub is made with.
pub struct GitHubConfig {
    /// The world's time.
    pub clock: WorldClock,
    /// Port on 127.0.0.1; 0 for any.
    pub port: u16,
    /// The App's id.
    pub app_id: u64,
    /// The App's webhook secret.
    pub webhook_secret: String,
    /// A token that sees everything, for tests of operators without an App.
    pub personal_token: Option<String>,
    /// All chance comes from it.
    pub seed: u64,
    /// The archive served as every release of `actions/runner`.
    pub release: Option<Bytes>,
    /// Options of the model; addresses and time-outs that follow from the world are filled in.
    pub options: Options,
}

impl GitHubConfig {
    /// App 4242 on any port.
    pub fn new(clock: WorldClock, webhook_secret: &str, seed: u64) -> Self {
        Self {
            clock,
            port: 0,
            app_id: 4242,
            webhook_secret: webhook_secret.into(),
            personal_token: None,
            seed,
            release: None,
            options: Options::default(),
        }
    }
}

/// A running GitHub. It ends with the process, or when [`GitHub::stop`] is called.
pub struct GitHub {
    clock: WorldClock,
    url: String,
    app_id: u64,
    personal_token: Option<String>,
    key: auth::AppKey,
    model: Mutex<model::GitHub>,
    hooks: webhooks::Hooks,
    apps: apps::Apps,
    release: Option<Bytes>,
    /// API requests under way, for the limit on concurrent ones.
    under_way: std::sync::atomic::AtomicUsize,
    stop: tokio::sync::watch::Sender<bool>,
}

/// Everything at GitHub at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// World time.
    pub at: Timestamp,
    /// Every job ever posted, by id.
    pub jobs: Vec<Job>,
    /// Every registration there is.
    pub runners: Vec<RunnerView>,
    /// Calls of the REST API by `METHOD template`.
    pub calls: BTreeMap<String, u64>,
}

/// Marks a response that is not to be sent: the connection is closed instead.
#[derive(Clone, Copy)]
struct HangUp;

impl GitHub {
    /// Starts serving on 127.0.0.1.
    pub async fn start(config: GitHubConfig) -> anyhow::Result<Arc<Self>> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, config.port));
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("listen on {address}"))?;
        let url = format!("http://{}", listener.local_addr().context("own address")?);
        let scale = config.clock.scale();
        let silence = SILENCE.mul_f64(scale);
        let options = Options {
            api_url: format!("{url}/api/v3"),
            html_url: url.clone(),
            offline_after: Some(config.options.offline_after.unwrap_or_default().max(silence)),
            lost_job_after: config.options.lost_job_after.max(silence),
            ..config.options
        };
        let github = Arc::new(Self {
            clock: config.clock,
            url,
            app_id: config.app_id,
            personal_token: config.personal_token,
            key: auth::AppKey::generate()?,
            model: Mutex::new(model::GitHub::new(options, config.seed)),
            hooks: webhooks::Hooks::new(
                config.clock,
                config.app_id,
                config.webhook_secret,
                config.seed,
            ),
            apps: apps::Apps::default(),
            release: config.release,
            under_way: std::sync::atomic::AtomicUsize::new(0),
            stop: tokio::sync::watch::Sender::new(false),
        });
        tokio::spawn(Arc::clone(&github).serve(listener));
        tokio::spawn(Arc::clone(&github).tick());
        Ok(github)
    }

    /// Base address, without a slash at the end. The API is below it at `/api/v3`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The App's private key as GitHub hands it out: PKCS#1, PEM.
    pub fn app_private_key_pem(&self) -> &str {
        self.key.pem()
    }

    /// The App's id.
    pub fn app_id(&self) -> u64 {
        self.app_id
    }

    /// Ids and names of the Apps that were made from manifests.
    pub fn made_apps(&self) -> Vec<(u64, String)> {
        self.apps.list()
    }

    /// Where webhooks go from now on; nowhere for `None`.
    pub fn set_webhook_target(&self, url: Option<&str>) {
        self.hooks.set_target(url);
    }

    /// Adds a repository (`owner/name`), and its owner as an organisation if that is new.
    pub fn add_repository(&self, full_name: &str, private: bool) {
        self.with_model(|model, _| {
            model.add_repository(full_name, private);
        });
    }

    /// Posts a job and answers its id; its repository must be there.
    pub fn post_job(&self, spec: &JobSpec) -> Result<u64, ApiError> {
        self.with_model(|model, now| model.post_job(now, spec))
    }

    /// Posts a matrix of jobs in one run.
    pub fn post_matrix(&self, spec: &JobSpec, count: usize) -> Result<Vec<u64>, ApiError> {
        self.with_model(|model, now| model.post_matrix(now, spec, count))
    }

    /// Cancels a job.
    pub fn cancel_job(&self, job_id: u64) -> Result<(), ApiError> {
        self.with_model(|model, now| model.cancel_job(now, job_id))
    }

    /// Approves the deployment that a job waits for.
    pub fn approve(&self, job_id: u64) -> Result<(), ApiError> {
        self.with_model(|model, now| model.approve(now, job_id))
    }

    /// Has a rule applied to API calls from now on.
    pub fn add_fault(&self, rule: FaultRule) {
        self.with_model(|model, _| model.add_fault(rule));
    }

    /// Does anything with the model, at the present time. Events that this causes are delivered.
    pub fn with_model<T>(&self, act: impl FnOnce(&mut model::GitHub, Timestamp) -> T) -> T {
        let (answer, events) = {
            let mut model = self.lock();
            let answer = act(&mut model, self.clock.now());
            (answer, model.take_events())
        };
        for event in events {
            self.hooks.deliver(event);
        }
        answer
    }

    /// Chances of faults in the deliveries that follow.
    pub fn set_delivery_faults(&self, faults: DeliveryFaults) {
        self.hooks.set_faults(faults);
    }

    /// What happens to particular deliveries that follow.
    pub fn plan_delivery(&self, plan: DeliveryPlan) {
        self.hooks.plan(plan);
    }

    /// Posts a webhook that the model knows nothing of: another event, a broken body, a wrong signature.
    pub fn send_raw(&self, hook: RawHook) {
        self.hooks.send_raw(hook);
    }

    /// Sends a delivery again, under its GUID. `false` if there is none of that id.
    pub fn redeliver(&self, delivery_id: u64) -> bool {
        self.hooks.redeliver(delivery_id)
    }

    /// The log of deliveries, oldest first.
    pub fn deliveries(&self) -> Vec<Delivery> {
        self.hooks.log()
    }

    /// As [`GitHub::deliveries`], without the first `skip`: for whoever follows the log.
    pub fn deliveries_from(&self, skip: usize) -> Vec<Delivery> {
        self.hooks.log_from(skip)
    }

    /// API calls by `METHOD template`.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        self.lock().calls().clone()
    }

    /// Everything at this moment.
    pub fn snapshot(&self) -> Snapshot {
        self.with_model(|model, now| {
            model.tick(now);
            Snapshot {
                at: now,
                jobs: model.all_jobs().cloned().collect(),
                runners: model.registrations(),
                calls: model.calls().clone(),
            }
        })
    }

    /// Stops serving.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    fn lock(&self) -> MutexGuard<'_, model::GitHub> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn tick(self: Arc<Self>) {
        let mut stop = self.stop.subscribe();
        while !*stop.borrow() {
            self.with_model(model::GitHub::tick);
            tokio::select! {
                () = tokio::time::sleep(TICK) => {}
                _ = stop.changed() => {}
            }
        }
    }

    async fn serve(self: Arc<Self>, listener: TcpListener) {
        let router: Router = Router::new()
            .merge(api::routes())
            .merge(protocol::routes())
            .merge(admin::routes())
            .merge(apps::routes())
            .fallback(api::unknown)
            .with_state(Arc::clone(&self));
        let mut stop = self.stop.subscribe();
        loop {
            let stream = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    // Out of descriptors, or a client that has gone: neither ends the server.
                    Err(_) => {
                        tokio::time::sleep(TICK).await;
                        continue;
                    }
                },
                _ = stop.changed() => return,
            };
            let service = TowerToHyperService::new(router.clone());
            let mut stop = stop.clone();
            tokio::spawn(async move {
                let service = hyper::service::service_fn(move |request| {
                    let answer = hyper::service::Service::call(&service, request);
                    async move { hang_up_if_marked(answer.await) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                tokio::select! {
                    ended = connection => if let Err(error) = ended {
                        tracing::debug!(%error, "a connection to GitHub broke");
                    },
                    _ = stop.changed() => {}
                }
            });
        }
    }
}

/// An answer that got lost: an error here closes the connection without a byte.
fn hang_up_if_marked<E>(answer: Result<Response, E>) -> Result<Response, std::io::Error> {
    match answer {
        Ok(response) if response.extensions().get::<HangUp>().is_none() => Ok(response),
        _ => Err(std::io::Error::other("the answer is lost on purpose")),
    }
}
