//! SQS's data plane: `ostler_sim::queue` behind the AWS JSON 1.0 protocol. Queues are made in moto
//! (CloudFormation, CreateQueue), which keeps their attributes; messages live here only.

mod mappings;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use md5::Md5;
use ostler_core::time::Timestamp;
use ostler_sim::queue::{
    self, Attributes, DeadLetter, MessageAttribute, NewMessage, Queue, QueueError, Received,
    Redrive, Sent,
};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Map, Value, json};
use sha2::Digest as _;
use tokio::sync::Notify;

use crate::aws::{self, ACCOUNT, Call, REGION, Reply};
use crate::time::WorldClock;

pub use mappings::Mapping;

/// moto's default for MaximumMessageSize; AWS's has been 1 MiB since August 2025.
const MOTO_MESSAGE_BYTES: usize = 262_144;
/// Longest wait of a receive. Source: API, ReceiveMessage.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// The SQS service of the local world.
pub struct Queues {
    clock: WorldClock,
    moto: aws::Client,
    /// Under which mappings invoke functions.
    functions: aws::Client,
    rng: Mutex<StdRng>,
    queues: tokio::sync::Mutex<HashMap<String, (u64, Arc<Entry>)>>,
    generation: AtomicU64,
    mappings: Mutex<BTreeMap<String, Vec<mappings::Running>>>,
}

struct Entry {
    arn: String,
    queue: Mutex<Queue>,
    /// Something was sent, deleted or given back.
    changed: Notify,
}

/// A refusal: HTTP status is always 400, as the JSON protocol has it.
struct Refusal {
    code: &'static str,
    /// The code in the old Query protocol, which SDKs still show.
    query_code: &'static str,
    message: String,
}

impl From<QueueError> for Refusal {
    fn from(error: QueueError) -> Self {
        let (code, query_code, message) = match error {
            QueueError::Missing(name) => (
                "MissingRequiredParameterException",
                "MissingParameter",
                format!("The request must contain the parameter {name}."),
            ),
            QueueError::Invalid(message) => {
                ("InvalidParameterValueException", "InvalidParameterValue", message)
            }
            QueueError::Contents => (
                "InvalidMessageContents",
                "InvalidMessageContents",
                "The message contains characters outside the allowed set.".to_owned(),
            ),
            QueueError::NotInFlight => (
                "MessageNotInflight",
                "AWS.SimpleQueueService.MessageNotInflight",
                "The message referred to is not in flight.".to_owned(),
            ),
            QueueError::OverLimit => {
                ("OverLimit", "OverLimit", "Too many messages are in flight.".to_owned())
            }
        };
        Self { code, query_code, message }
    }
}

type Served<T> = Result<T, Refusal>;

impl Queues {
    /// `moto` answers for attributes, `functions` invokes.
    pub fn new(
        clock: WorldClock,
        moto: aws::Client,
        functions: aws::Client,
        seed: u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            clock,
            moto,
            functions,
            rng: Mutex::new(StdRng::seed_from_u64(seed ^ 0x5153)),
            queues: tokio::sync::Mutex::default(),
            generation: AtomicU64::new(0),
            mappings: Mutex::default(),
        })
    }

    /// Attributes may have changed: they are read again at the next call of each queue.
    pub fn refresh(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends all event source mappings.
    pub fn stop(&self) {
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Serves the actions on messages; `None` for all others, which moto serves.
    pub async fn serve(&self, call: &Call, action: &str, body: &[u8]) -> Option<Reply> {
        let known = [
            "SendMessage",
            "SendMessageBatch",
            "ReceiveMessage",
            "DeleteMessage",
            "DeleteMessageBatch",
            "ChangeMessageVisibility",
            "ChangeMessageVisibilityBatch",
            "GetQueueAttributes",
            "PurgeQueue",
        ];
        if !known.contains(&action) {
            return None;
        }
        if call.protocol != aws::Protocol::Json {
            let message = "the local world serves SQS in its JSON protocol only: use a newer SDK";
            return Some(call.error(400, "UnsupportedOperation", message));
        }
        let input: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        Some(match self.act(action, &input).await {
            Ok(output) => aws::reply(200, "application/x-amz-json-1.0", output.to_string()),
            Err(refusal) => {
                let code = format!("com.amazonaws.sqs#{}", refusal.code);
                let mut answer = call.error(400, &code, &refusal.message);
                if let Ok(value) = HeaderValue::from_str(&format!("{};Sender", refusal.query_code))
                {
                    answer.headers_mut().insert("x-amzn-query-error", value);
                }
                answer
            }
        })
    }

    async fn act(&self, action: &str, input: &Value) -> Served<Value> {
        let url = input["QueueUrl"].as_str().ok_or(QueueError::Missing("QueueUrl"))?;
        let name = url.trim_end_matches('/').rsplit('/').next().unwrap_or("");
        let entry = self.entry(name).await?;
        let now = self.clock.now();
        match action {
            "SendMessage" => {
                let message = new_message(input)?;
                let digests = digests(&message);
                let sent = self.send(&entry, message)?;
                Ok(sent_json(&sent, digests))
            }
            "SendMessageBatch" => {
                let entries = entries(input)?;
                let messages: Vec<Served<NewMessage>> = entries.iter().map(new_message).collect();
                let bytes = messages.iter().flatten().map(queue::size).sum();
                self.batch(&entries, bytes, |at, _| {
                    let message = match &messages[at] {
                        Ok(message) => message.clone(),
                        Err(refusal) => {
                            return Err(Refusal { message: refusal.message.clone(), ..*refusal });
                        }
                    };
                    let digests = digests(&message);
                    Ok(sent_json(&self.send(&entry, message)?, digests))
                })
            }
            "ReceiveMessage" => self.receive_json(&entry, input).await,
            "DeleteMessage" => {
                self.delete(&entry, handle(input)?)?;
                Ok(json!({}))
            }
            "DeleteMessageBatch" => self.batch(&entries(input)?, 0, |_, each| {
                self.delete(&entry, handle(each)?)?;
                Ok(json!({}))
            }),
            "ChangeMessageVisibility" => {
                self.change_visibility(&entry, input)?;
                Ok(json!({}))
            }
            "ChangeMessageVisibilityBatch" => self.batch(&entries(input)?, 0, |_, each| {
                self.change_visibility(&entry, each)?;
                Ok(json!({}))
            }),
            "PurgeQueue" => {
                entry.lock().purge();
                Ok(json!({}))
            }
            _ => {
                let counts = entry.lock().counts(now);
                let mut all = self.moto_attributes(name).await?;
                for (name, count) in [
                    ("ApproximateNumberOfMessages", counts.visible),
                    ("ApproximateNumberOfMessagesNotVisible", counts.in_flight),
                    ("ApproximateNumberOfMessagesDelayed", counts.delayed),
                ] {
                    all.insert(name.to_owned(), json!(count.to_string()));
                }
                let asked: Vec<&str> = input["AttributeNames"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .collect();
                all.retain(|name, _| asked.contains(&"All") || asked.contains(&name.as_str()));
                Ok(json!({"Attributes": all}))
            }
        }
    }

    /// Carries out the entries of a batch one by one; some may fail.
    fn batch(
        &self,
        entries: &[Value],
        bytes: usize,
        mut each: impl FnMut(usize, &Value) -> Served<Value>,
    ) -> Served<Value> {
        let ids = entries.iter().map(|entry| entry["Id"].as_str().unwrap_or(""));
        queue::check_batch(ids, bytes).map_err(|code| Refusal {
            code,
            query_code: code,
            message: format!("The batch is refused: {code}."),
        })?;
        let (mut successful, mut failed) = (Vec::new(), Vec::new());
        for (at, entry) in entries.iter().enumerate() {
            match each(at, entry) {
                Ok(mut output) => {
                    output["Id"] = entry["Id"].clone();
                    successful.push(output);
                }
                Err(refusal) => failed.push(json!({
                    "Id": entry["Id"], "SenderFault": true, "Code": refusal.query_code, "Message": refusal.message,
                })),
            }
        }
        let mut output = json!({"Successful": successful});
        if !failed.is_empty() {
            output["Failed"] = json!(failed);
        }
        Ok(output)
    }

    fn send(&self, entry: &Entry, message: NewMessage) -> Result<Sent, QueueError> {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = entry.lock().send(self.clock.now(), message, &mut *rng)?;
        drop(rng);
        entry.changed.notify_waiters();
        Ok(sent)
    }

    fn delete(&self, entry: &Entry, handle: &str) -> Result<(), QueueError> {
        entry.lock().delete(self.clock.now(), handle)?;
        entry.changed.notify_waiters();
        Ok(())
    }

    fn change_visibility(&self, entry: &Entry, input: &Value) -> Result<(), QueueError> {
        let timeout = seconds(&input["VisibilityTimeout"], "VisibilityTimeout")?
            .ok_or(QueueError::Missing("VisibilityTimeout"))?;
        entry.lock().change_visibility(self.clock.now(), handle(input)?, timeout)?;
        entry.changed.notify_waiters();
        Ok(())
    }

    async fn receive_json(&self, entry: &Arc<Entry>, input: &Value) -> Served<Value> {
        let wait = match seconds(&input["WaitTimeSeconds"], "WaitTimeSeconds")? {
            Some(wait) if wait > WAIT_MAX => {
                return Err(QueueError::Invalid(
                    "Value for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided.".into(),
                )
                .into());
            }
            Some(wait) => wait,
            None => entry.lock().attributes().receive_wait,
        };
        let max = match &input["MaxNumberOfMessages"] {
            Value::Null => 1,
            value => value.as_u64().and_then(|max| usize::try_from(max).ok()).unwrap_or(0),
        };
        let visibility = seconds(&input["VisibilityTimeout"], "VisibilityTimeout")?;
        let messages = self.receive(entry, max, visibility, wait).await?;
        if messages.is_empty() {
            return Ok(json!({}));
        }
        let names = |key: &str| -> Vec<String> {
            let names = input[key].as_array().into_iter().flatten();
            names.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let system = [names("AttributeNames"), names("MessageSystemAttributeNames")].concat();
        let own = names("MessageAttributeNames");
        Ok(
            json!({"Messages": messages.iter().map(|message| received_json(message, &system, &own)).collect::<Vec<_>>()}),
        )
    }

    /// Receives, waiting up to `wait` (world time) for a first message.
    async fn receive(
        &self,
        entry: &Arc<Entry>,
        max: usize,
        visibility: Option<Duration>,
        wait: Duration,
    ) -> Result<Vec<Received>, QueueError> {
        let deadline = self.clock.now() + wait;
        loop {
            let changed = entry.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let now = self.clock.now();
            let (received, dead) = {
                let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
                entry.lock().receive(now, max, visibility, &mut *rng)?
            };
            self.bury(now, dead).await;
            if !received.is_empty() || now >= deadline {
                return Ok(received);
            }
            let wake = entry.lock().next_change(now).map_or(deadline, |at| at.min(deadline));
            // A whole millisecond at least: timestamps are no finer, and a shorter sleep would spin.
            let sleep = self.clock.real(wake.since(now)).max(Duration::from_millis(1));
            tokio::select! {
                () = &mut changed => {}
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    async fn bury(&self, now: Timestamp, dead: Vec<DeadLetter>) {
        for letter in dead {
            match self.entry(name_of(&letter.target_arn)).await {
                Ok(target) => {
                    target.lock().accept(now, letter);
                    target.changed.notify_waiters();
                }
                Err(refusal) => {
                    tracing::error!(
                        queue = letter.target_arn,
                        why = refusal.message,
                        "a dead letter is lost"
                    );
                }
            }
        }
    }

    /// Sends a message from within the world, e.g. an event that could not be delivered.
    pub fn dead_letter(
        self: &Arc<Self>,
        queue_arn: &str,
        body: String,
        attributes: BTreeMap<String, String>,
    ) {
        let (queues, name) = (Arc::clone(self), name_of(queue_arn).to_owned());
        tokio::spawn(async move {
            let attributes = attributes.into_iter().map(|(name, value)| {
                (name, MessageAttribute { data_type: "String".into(), value: value.into_bytes() })
            });
            let message =
                NewMessage { body, attributes: attributes.collect(), ..NewMessage::default() };
            let sent = match queues.entry(&name).await {
                Ok(entry) => queues.send(&entry, message).map(|_| ()).map_err(Refusal::from),
                Err(refusal) => Err(refusal),
            };
            if let Err(refusal) = sent {
                tracing::error!(queue = name, why = refusal.message, "a dead letter is lost");
            }
        });
    }

    /// Attributes of a queue. The error says why there are none.
    pub async fn attributes(&self, name: &str) -> Result<Attributes, String> {
        let entry = self.entry(name).await.map_err(|refusal| refusal.message)?;
        let attributes = entry.lock().attributes().clone();
        Ok(attributes)
    }

    async fn entry(&self, name: &str) -> Served<Arc<Entry>> {
        let generation = self.generation.load(Ordering::SeqCst);
        let mut queues = self.queues.lock().await;
        if let Some((read_at, entry)) = queues.get(name)
            && *read_at >= generation
        {
            return Ok(Arc::clone(entry));
        }
        let attributes = match self.moto_attributes(name).await {
            Ok(attributes) => parse_attributes(&attributes),
            Err(refusal) => {
                queues.remove(name);
                return Err(refusal);
            }
        };
        let entry = match queues.get(name) {
            Some((_, known)) => {
                known.lock().set_attributes(attributes);
                Arc::clone(known)
            }
            None => Arc::new(Entry {
                arn: format!("arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"),
                queue: Mutex::new(Queue::new(attributes)),
                changed: Notify::new(),
            }),
        };
        queues.insert(name.to_owned(), (generation, Arc::clone(&entry)));
        Ok(entry)
    }

    async fn moto_attributes(&self, name: &str) -> Served<Map<String, Value>> {
        let input = json!({
            "QueueUrl": format!("{}/{ACCOUNT}/{name}", self.moto.base()), "AttributeNames": ["All"],
        });
        let answer = self.moto.json("sqs", "AmazonSQS.GetQueueAttributes", &input).await;
        let mut answer = answer.map_err(|error| Refusal {
            code: "QueueDoesNotExist",
            query_code: "AWS.SimpleQueueService.NonExistentQueue",
            message: if error.status == 400 {
                "The specified queue does not exist.".to_owned()
            } else {
                error.to_string()
            },
        })?;
        Ok(answer["Attributes"].as_object_mut().map(std::mem::take).unwrap_or_default())
    }
}

impl Entry {
    fn lock(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queue's name in its ARN.
pub fn name_of(arn: &str) -> &str {
    arn.rsplit(':').next().unwrap_or("")
}

fn parse_attributes(all: &Map<String, Value>) -> Attributes {
    let text = |name: &str| all.get(name).and_then(Value::as_str);
    let number = |name: &str| text(name).and_then(|value| value.parse::<u64>().ok());
    let flag = |name: &str| text(name).is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let default = Attributes::default();
    let duration = |name: &str, otherwise| number(name).map_or(otherwise, Duration::from_secs);
    let redrive =
        text("RedrivePolicy").and_then(|policy| serde_json::from_str::<Value>(policy).ok());
    Attributes {
        fifo: flag("FifoQueue"),
        content_based_deduplication: flag("ContentBasedDeduplication"),
        deduplicate_by_group: text("DeduplicationScope") == Some("messageGroup"),
        delay: duration("DelaySeconds", default.delay),
        visibility: duration("VisibilityTimeout", default.visibility),
        retention: duration("MessageRetentionPeriod", default.retention),
        message_bytes_max: number("MaximumMessageSize")
            .and_then(|bytes| usize::try_from(bytes).ok())
            .filter(|bytes| *bytes != MOTO_MESSAGE_BYTES)
            .unwrap_or(default.message_bytes_max),
        receive_wait: duration("ReceiveMessageWaitTimeSeconds", default.receive_wait),
        redrive: redrive.and_then(|policy| {
            let count = &policy["maxReceiveCount"];
            let count = count.as_u64().or_else(|| count.as_str()?.parse().ok())?;
            Some(Redrive {
                target_arn: policy["deadLetterTargetArn"].as_str()?.to_owned(),
                max_receive_count: u32::try_from(count).ok()?,
            })
        }),
    }
}

fn entries(input: &Value) -> Result<Vec<Value>, QueueError> {
    input["Entries"].as_array().cloned().ok_or(QueueError::Missing("Entries"))
}

fn handle(input: &Value) -> Result<&str, QueueError> {
    input["ReceiptHandle"].as_str().ok_or(QueueError::Missing("ReceiptHandle"))
}

fn seconds(value: &Value, name: &str) -> Result<Option<Duration>, QueueError> {
    match value {
        Value::Null => Ok(None),
        value => {
            value.as_u64().map(|seconds| Some(Duration::from_secs(seconds))).ok_or_else(|| {
                QueueError::Invalid(format!(
                    "Value {value} for parameter {name} is invalid. Reason: Must be >= 0."
                ))
            })
        }
    }
}

fn new_message(input: &Value) -> Served<NewMessage> {
    let text = |name: &str| input[name].as_str().map(str::to_owned);
    let mut attributes = BTreeMap::new();
    for (name, value) in input["MessageAttributes"].as_object().into_iter().flatten() {
        let data_type = value["DataType"].as_str().unwrap_or("").to_owned();
        let decoded = match (value["StringValue"].as_str(), value["BinaryValue"].as_str()) {
            (Some(text), _) => Some(text.as_bytes().to_vec()),
            (None, Some(encoded)) => STANDARD.decode(encoded).ok(),
            (None, None) => None,
        };
        let kind = data_type.split('.').next().unwrap_or("");
        let value = decoded
            .filter(|value| !value.is_empty() && ["String", "Number", "Binary"].contains(&kind));
        let value = value.ok_or_else(|| {
            QueueError::Invalid(format!(
                "The message attribute '{name}' has an invalid type or no value."
            ))
        })?;
        attributes.insert(name.clone(), MessageAttribute { data_type, value });
    }
    if attributes.len() > queue::BATCH_MAX {
        return Err(QueueError::Invalid(
            "Number of message attributes exceeds the allowed maximum [10].".into(),
        )
        .into());
    }
    Ok(NewMessage {
        body: text("MessageBody").ok_or(QueueError::Missing("MessageBody"))?,
        attributes,
        group: text("MessageGroupId"),
        deduplication_id: text("MessageDeduplicationId"),
        delay: seconds(&input["DelaySeconds"], "DelaySeconds")?,
    })
}

fn digests(message: &NewMessage) -> (String, Option<String>) {
    (md5_hex(message.body.as_bytes()), attributes_md5(message.attributes.iter()))
}

fn sent_json(sent: &Sent, (body, attributes): (String, Option<String>)) -> Value {
    let mut output = json!({"MessageId": sent.message_id, "MD5OfMessageBody": body});
    if let Some(attributes) = attributes {
        output["MD5OfMessageAttributes"] = json!(attributes);
    }
    if let Some(number) = &sent.sequence_number {
        output["SequenceNumber"] = json!(number);
    }
    output
}

/// System attributes of a received message, as the API and Lambda's events show them.
fn system_attributes(message: &Received) -> BTreeMap<&'static str, String> {
    let mut all = BTreeMap::from([
        ("ApproximateReceiveCount", message.receive_count.to_string()),
        ("ApproximateFirstReceiveTimestamp", message.first_received_at.millis().to_string()),
        ("SentTimestamp", message.sent_at.millis().to_string()),
        ("SenderId", "AROALOCALWORLD:local".to_owned()),
    ]);
    let fifo = [
        ("MessageGroupId", &message.group),
        ("MessageDeduplicationId", &message.deduplication_id),
        ("SequenceNumber", &message.sequence_number),
    ];
    all.extend(fifo.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
    all
}

fn received_json(message: &Received, system: &[String], own: &[String]) -> Value {
    let mut output = json!({
        "MessageId": message.message_id,
        "ReceiptHandle": message.receipt_handle,
        "Body": message.body,
        "MD5OfBody": md5_hex(message.body.as_bytes()),
    });
    let mut attributes = system_attributes(message);
    attributes.retain(|name, _| system.iter().any(|asked| asked == "All" || asked == name));
    if !attributes.is_empty() {
        output["Attributes"] = json!(attributes);
    }
    let asked = |name: &str| {
        own.iter().any(|pattern| match pattern.strip_suffix(".*") {
            Some(start) => name.starts_with(start),
            None => pattern == "All" || pattern == name,
        })
    };
    let chosen: Vec<_> = message.attributes.iter().filter(|(name, _)| asked(name)).collect();
    if !chosen.is_empty() {
        output["MD5OfMessageAttributes"] = json!(attributes_md5(chosen.iter().copied()));
        let chosen = chosen.into_iter().map(|(name, attribute)| {
            let value = match String::from_utf8(attribute.value.clone()) {
                Ok(text) if !attribute.data_type.starts_with("Binary") => {
                    json!({"DataType": attribute.data_type, "StringValue": text})
                }
                _ => json!({"DataType": attribute.data_type, "BinaryValue": STANDARD.encode(&attribute.value)}),
            };
            (name.clone(), value)
        });
        output["MessageAttributes"] = Value::Object(chosen.collect());
    }
    output
}

fn md5_hex(bytes: &[u8]) -> String {
    Md5::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Source: SQS developer guide, "Calculating the MD5 message digest for message attributes".
fn attributes_md5<'a>(
    attributes: impl Iterator<Item = (&'a String, &'a MessageAttribute)>,
) -> Option<String> {
    let sorted: BTreeMap<_, _> = attributes.collect();
    let mut bytes = Vec::new();
    for (name, attribute) in sorted {
        for part in [name.as_bytes(), attribute.data_type.as_bytes()] {
            bytes.extend(prefixed(part));
        }
        bytes.push(if attribute.data_type.starts_with("Binary") { 2 } else { 1 });
        bytes.extend(prefixed(&attribute.value));
    }
    (!bytes.is_empty()).then(|| md5_hex(&bytes))
}

fn prefixed(part: &[u8]) -> Vec<u8> {
    let length = u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&length, part].concat()
}
