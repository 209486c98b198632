//! One SQS queue, standard or FIFO, as a state machine: every call takes the time, nothing else happens.
//!
//! Sources, all AWS: the SQS developer guide (DG) and API reference (API), by page name at each rule.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use ostler_core::time::Timestamp;
use rand::Rng;
use sha2::{Digest, Sha256};

/// Duplicates are recognised for five minutes. Source: DG, "Using the message deduplication ID".
pub const DEDUPLICATION_WINDOW: Duration = Duration::from_secs(300);
/// Entries and messages of a batch call. Source: DG, "Message quotas".
pub const BATCH_MAX: usize = 10;
/// Body and attributes of a message, and of all messages of a batch: 1 MiB since August 2025.
/// Source: DG, "Message quotas".
pub const MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// Longest visibility timeout. Source: API, ChangeMessageVisibility.
pub const VISIBILITY_MAX: Duration = Duration::from_secs(43_200);
/// Longest delay. Source: API, SendMessage.
pub const DELAY_MAX: Duration = Duration::from_secs(900);
/// Message group and deduplication ids. Source: API, SendMessage.
pub const ID_LENGTH_MAX: usize = 128;
/// Messages received and not yet deleted. Source: DG, "Message quotas" (FIFO: since November 2024).
pub const IN_FLIGHT_MAX: usize = 120_000;

/// What a queue was created with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Ordered and deduplicated.
    pub fifo: bool,
    /// The deduplication id of a message without one is its body's SHA-256.
    pub content_based_deduplication: bool,
    /// Duplicates count per group rather than for the whole queue.
    pub deduplicate_by_group: bool,
    /// How long a new message is held back.
    pub delay: Duration,
    /// How long a received message is hidden.
    pub visibility: Duration,
    /// How long a message is kept.
    pub retention: Duration,
    /// Longest body with attributes, bytes.
    pub message_bytes_max: usize,
    /// How long a receive waits for a first message, unless it says otherwise.
    pub receive_wait: Duration,
    /// Where messages go that were received too often.
    pub redrive: Option<Redrive>,
}

impl Default for Attributes {
    /// Source: API, CreateQueue.
    fn default() -> Self {
        Self {
            fifo: false,
            content_based_deduplication: false,
            deduplicate_by_group: false,
            delay: Duration::ZERO,
            visibility: Duration::from_secs(30),
            retention: Duration::from_secs(345_600),
            message_bytes_max: MESSAGE_BYTES_MAX,
            receive_wait: Duration::ZERO,
            redrive: None,
        }
    }
}

/// A redrive policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redrive {
    /// ARN of the dead-letter queue.
    pub target_arn: String,
    /// Receives after which the next one moves the message instead.
    pub max_receive_count: u32,
}

/// A message attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageAttribute {
    /// `String`, `Number` or `Binary`, with a label of one's own after a dot.
    pub data_type: String,
    /// The value, as bytes.
    pub value: Vec<u8>,
}

/// A message to send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewMessage {
    /// 1 byte to 1 MiB of text that XML can hold.
    pub body: String,
    /// Attributes of the sender's own.
    pub attributes: BTreeMap<String, MessageAttribute>,
    /// Required on a FIFO queue.
    pub group: Option<String>,
    /// Required on a FIFO queue without content-based deduplication.
    pub deduplication_id: Option<String>,
    /// Not allowed on a FIFO queue.
    pub delay: Option<Duration>,
}

/// What became of a message sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The message's id; of a duplicate, the original's.
    pub message_id: String,
    /// FIFO: 20 digits, rising within a group.
    pub sequence_number: Option<String>,
    /// Whether it was recognised as sent before, and so is not delivered again.
    pub duplicate: bool,
}

/// A message as a consumer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its id.
    pub message_id: String,
    /// Good for this receive only.
    pub receipt_handle: String,
    /// Its body.
    pub body: String,
    /// Attributes of the sender's own.
    pub attributes: BTreeMap<String, MessageAttribute>,
    /// Message group.
    pub group: Option<String>,
    /// Deduplication id, given or made from the body.
    pub deduplication_id: Option<String>,
    /// FIFO: 20 digits.
    pub sequence_number: Option<String>,
    /// When it was sent.
    pub sent_at: Timestamp,
    /// When it was received first.
    pub first_received_at: Timestamp,
    /// How often it has been received, this time included.
    pub receive_count: u32,
}

/// A message that was received too often, on its way to a dead-letter queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// ARN of the dead-letter queue.
    pub target_arn: String,
    message: Message,
}

/// Number of messages by state. Source: API, GetQueueAttributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ready to be received (some of them may be blocked by their group).
    pub visible: usize,
    /// Received and hidden.
    pub in_flight: usize,
    /// Not yet ready for the first time.
    pub delayed: usize,
}

/// Why a call is refused. The text is AWS's, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueError {
    /// `MissingParameter`.
    Missing(&'static str),
    /// `InvalidParameterValue`.
    Invalid(String),
    /// `InvalidMessageContents`.
    Contents,
    /// `MessageNotInflight`.
    NotInFlight,
    /// `OverLimit`.
    OverLimit,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Message {
    id: String,
    body: String,
    attributes: BTreeMap<String, MessageAttribute>,
    group: Option<String>,
    deduplication_id: Option<String>,
    sequence: Option<u128>,
    sent_at: Timestamp,
    first_received_at: Option<Timestamp>,
    receive_count: u32,
    /// Cannot be received before this.
    hidden_until: Timestamp,
    /// Of the latest receive; empty before the first.
    receipt: String,
}

impl Message {
    fn in_flight(&self, now: Timestamp) -> bool {
        self.receive_count > 0 && self.hidden_until > now
    }

    fn received(&self) -> Received {
        Received {
            message_id: self.id.clone(),
            receipt_handle: self.receipt.clone(),
            body: self.body.clone(),
            attributes: self.attributes.clone(),
            group: self.group.clone(),
            deduplication_id: self.deduplication_id.clone(),
            sequence_number: self.sequence.map(sequence_text),
            sent_at: self.sent_at,
            first_received_at: self.first_received_at.unwrap_or(self.sent_at),
            receive_count: self.receive_count,
        }
    }
}

/// A queue with its messages.
#[derive(Clone, Debug)]
pub struct Queue {
    attributes: Attributes,
    /// In the order of sending.
    messages: Vec<Message>,
    /// Deduplication key to the original and when it was sent, deleted messages included.
    recent: HashMap<(String, String), (Timestamp, Sent)>,
    sequence: u128,
}

impl Queue {
    /// An empty queue.
    pub fn new(attributes: Attributes) -> Self {
        Self {
            attributes,
            messages: Vec::new(),
            recent: HashMap::new(),
            sequence: 18_850_000_000_000_000_000,
        }
    }

    /// What it is configured with.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Changes the configuration; messages keep their state.
    pub fn set_attributes(&mut self, attributes: Attributes) {
        self.attributes = attributes;
    }

    /// Sends a message.
    pub fn send(
        &mut self,
        now: Timestamp,
        message: NewMessage,
        rng: &mut impl Rng,
    ) -> Result<Sent, QueueError> {
        self.expire(now);
        self.check(&message)?;
        let deduplication_id = match (&message.deduplication_id, self.attributes.fifo) {
            (Some(id), _) => Some(id.clone()),
            (None, true) => Some(content_id(&message.body)),
            (None, false) => None,
        };
        let key = deduplication_id.clone().filter(|_| self.attributes.fifo).map(|id| {
            let by_group = self.attributes.deduplicate_by_group;
            (message.group.clone().filter(|_| by_group).unwrap_or_default(), id)
        });
        // DG, "Exactly-once processing": a duplicate within the window is accepted and not delivered,
        // also after the original was received and deleted.
        if let Some((_, original)) = key.as_ref().and_then(|key| self.recent.get(key)) {
            return Ok(Sent { duplicate: true, ..original.clone() });
        }
        let sequence = self.attributes.fifo.then(|| {
            self.sequence += 256;
            self.sequence
        });
        let sent = Sent {
            message_id: uuid(rng),
            sequence_number: sequence.map(sequence_text),
            duplicate: false,
        };
        if let Some(key) = key {
            self.recent.insert(key, (now, sent.clone()));
        }
        self.messages.push(Message {
            id: sent.message_id.clone(),
            body: message.body,
            attributes: message.attributes,
            group: message.group,
            deduplication_id,
            sequence,
            sent_at: now,
            first_received_at: None,
            receive_count: 0,
            hidden_until: now + message.delay.unwrap_or(self.attributes.delay),
            receipt: String::new(),
        });
        Ok(sent)
    }

    fn check(&self, message: &NewMessage) -> Result<(), QueueError> {
        if message.body.is_empty() {
            return Err(QueueError::Missing("MessageBody"));
        }
        // API, SendMessage: what XML 1.0 allows.
        let allowed = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
        if !message.body.chars().all(allowed) {
            return Err(QueueError::Contents);
        }
        let size = size(message);
        if size > self.attributes.message_bytes_max {
            return Err(QueueError::Invalid(format!(
                "One or more parameters are invalid. Reason: Message must be shorter than {} bytes.",
                self.attributes.message_bytes_max
            )));
        }
        for (name, value) in [
            ("MessageGroupId", &message.group),
            ("MessageDeduplicationId", &message.deduplication_id),
        ] {
            // API, SendMessage: 1 to 128 alphanumeric characters and punctuation.
            let valid = value.as_ref().is_none_or(|value| {
                (1..=ID_LENGTH_MAX).contains(&value.len())
                    && value.bytes().all(|byte| byte.is_ascii_graphic())
            });
            if !valid {
                return Err(QueueError::Invalid(format!(
                    "Value {} for parameter {name} is invalid. Reason: {name} can only include alphanumeric and punctuation characters. 1 to 128 in length.",
                    value.as_deref().unwrap_or("")
                )));
            }
        }
        if message.delay.is_some_and(|delay| delay > DELAY_MAX) {
            return Err(QueueError::Invalid("DelaySeconds must be between 0 and 900.".to_owned()));
        }
        if !self.attributes.fifo {
            return match message.deduplication_id {
                // A group id alone is allowed: fair queues, since July 2025.
                Some(_) => Err(not_for_this_type("MessageDeduplicationId")),
                None => Ok(()),
            };
        }
        if message.group.is_none() {
            return Err(QueueError::Missing("MessageGroupId"));
        }
        if message.delay.is_some() {
            return Err(not_for_this_type("DelaySeconds"));
        }
        if message.deduplication_id.is_none() && !self.attributes.content_based_deduplication {
            return Err(QueueError::Invalid(
                "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly".to_owned(),
            ));
        }
        Ok(())
    }

    /// Receives up to `max` (1 to 10) messages, hiding them for `visibility` or the queue's own timeout.
    /// What was received too often leaves as a dead letter instead.
    pub fn receive(
        &mut self,
        now: Timestamp,
        max: usize,
        visibility: Option<Duration>,
        rng: &mut impl Rng,
    ) -> Result<(Vec<Received>, Vec<DeadLetter>), QueueError> {
        self.expire(now);
        if !(1..=BATCH_MAX).contains(&max) {
            return Err(QueueError::Invalid(format!(
                "Value {max} for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."
            )));
        }
        let visibility = valid_visibility(visibility.unwrap_or(self.attributes.visibility))?;
        let in_flight = self.messages.iter().filter(|message| message.in_flight(now)).count();
        if in_flight >= IN_FLIGHT_MAX {
            // API, ReceiveMessage: an error on standard queues; FIFO queues just give nothing.
            return if self.attributes.fifo {
                Ok((Vec::new(), Vec::new()))
            } else {
                Err(QueueError::OverLimit)
            };
        }
        // DG, "FIFO delivery logic": no message of a group while an earlier one of it is in flight; the
        // one batch may hold several of a group, in order.
        let mut blocked: BTreeSet<String> = BTreeSet::new();
        if self.attributes.fifo {
            let groups = self.messages.iter().filter(|message| message.in_flight(now));
            blocked = groups.filter_map(|message| message.group.clone()).collect();
        }
        let mut received = Vec::new();
        let mut dead = Vec::new();
        let mut at = 0;
        while at < self.messages.len() && received.len() < max {
            let message = &mut self.messages[at];
            let group = message.group.clone().filter(|_| self.attributes.fifo);
            if message.hidden_until > now
                || group.as_ref().is_some_and(|group| blocked.contains(group))
            {
                // A later message never overtakes an earlier one of its group.
                blocked.extend(group);
                at += 1;
                continue;
            }
            // DG, "Using dead-letter queues": moved when it would be received once more than allowed.
            if let Some(redrive) = &self.attributes.redrive
                && message.receive_count >= redrive.max_receive_count
            {
                let target_arn = redrive.target_arn.clone();
                dead.push(DeadLetter { target_arn, message: self.messages.remove(at) });
                continue;
            }
            message.receive_count += 1;
            message.first_received_at.get_or_insert(now);
            message.hidden_until = now + visibility;
            message.receipt = uuid(rng);
            received.push(message.received());
            at += 1;
        }
        Ok((received, dead))
    }

    /// Takes a dead letter of another queue. Its id, body and group stay, its receives are counted afresh;
    /// its age too on a FIFO queue, not on a standard one. Source: DG, "Using dead-letter queues".
    pub fn accept(&mut self, now: Timestamp, letter: DeadLetter) {
        let mut message = letter.message;
        if self.attributes.fifo {
            message.sent_at = now;
            self.sequence += 256;
            message.sequence = Some(self.sequence);
        }
        message.hidden_until = now;
        message.receive_count = 0;
        message.first_received_at = None;
        message.receipt = String::new();
        self.messages.push(message);
    }

    /// Deletes by the handle of the latest receive. Source: API, DeleteMessage: an older handle, or a
    /// message that is gone, is a success without effect; on a FIFO queue an expired handle is an error.
    pub fn delete(&mut self, now: Timestamp, receipt: &str) -> Result<(), QueueError> {
        self.expire(now);
        let Some(at) = self.position(receipt)? else { return Ok(()) };
        if self.attributes.fifo && !self.messages[at].in_flight(now) {
            return Err(expired(receipt));
        }
        self.messages.remove(at);
        Ok(())
    }

    /// Hides a message in flight for another while, counted from now; zero gives it back.
    pub fn change_visibility(
        &mut self,
        now: Timestamp,
        receipt: &str,
        timeout: Duration,
    ) -> Result<(), QueueError> {
        self.expire(now);
        let timeout = valid_visibility(timeout)?;
        let Some(at) = self.position(receipt)? else { return Err(QueueError::NotInFlight) };
        let message = &mut self.messages[at];
        if !message.in_flight(now) {
            return Err(QueueError::NotInFlight);
        }
        message.hidden_until = now + timeout;
        Ok(())
    }

    /// Removes all messages; what was sent in the last five minutes is still recognised.
    pub fn purge(&mut self) {
        self.messages.clear();
    }

    /// Number of messages by state.
    pub fn counts(&mut self, now: Timestamp) -> Counts {
        self.expire(now);
        let mut counts = Counts::default();
        for message in &self.messages {
            match (message.hidden_until > now, message.receive_count) {
                (false, _) => counts.visible += 1,
                (true, 0) => counts.delayed += 1,
                (true, _) => counts.in_flight += 1,
            }
        }
        counts
    }

    /// When the next hidden message shows itself, if none is sent before; `None` if none is hidden.
    pub fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        self.messages.iter().map(|message| message.hidden_until).filter(|until| *until > now).min()
    }

    fn position(&self, receipt: &str) -> Result<Option<usize>, QueueError> {
        if receipt.len() != 36 {
            return Err(QueueError::Invalid(format!(
                "The input receipt handle \"{receipt}\" is not a valid receipt handle."
            )));
        }
        Ok(self.messages.iter().position(|message| message.receipt == receipt))
    }

    fn expire(&mut self, now: Timestamp) {
        let retention = self.attributes.retention;
        self.messages.retain(|message| now.since(message.sent_at) < retention);
        self.recent.retain(|_, (at, _)| now.since(*at) < DEDUPLICATION_WINDOW);
    }
}

/// Bytes of a message as quotas count them: body, and names, types and values of its attributes.
pub fn size(message: &NewMessage) -> usize {
    let attributes = message.attributes.iter();
    let attributes = attributes
        .map(|(name, attribute)| name.len() + attribute.data_type.len() + attribute.value.len());
    message.body.len() + attributes.sum::<usize>()
}

/// Checks the entries of a batch before any of them is carried out. Source: API, SendMessageBatch
/// (errors). The error is AWS's code.
pub fn check_batch<'a>(
    ids: impl Iterator<Item = &'a str>,
    bytes: usize,
) -> Result<(), &'static str> {
    let ids: Vec<&str> = ids.collect();
    let distinct: BTreeSet<&str> = ids.iter().copied().collect();
    let valid = |id: &&str| {
        (1..=80).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    match () {
        () if ids.is_empty() => Err("EmptyBatchRequest"),
        () if ids.len() > BATCH_MAX => Err("TooManyEntriesInBatchRequest"),
        () if distinct.len() < ids.len() => Err("BatchEntryIdsNotDistinct"),
        () if !ids.iter().all(valid) => Err("InvalidBatchEntryId"),
        () if bytes > MESSAGE_BYTES_MAX => Err("BatchRequestTooLong"),
        () => Ok(()),
    }
}

fn not_for_this_type(parameter: &str) -> QueueError {
    QueueError::Invalid(format!(
        "Value for parameter {parameter} is invalid. Reason: The request include parameter that is not valid for this queue type."
    ))
}

fn expired(receipt: &str) -> QueueError {
    QueueError::Invalid(format!(
        "Value {receipt} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
    ))
}

fn valid_visibility(timeout: Duration) -> Result<Duration, QueueError> {
    if timeout > VISIBILITY_MAX {
        return Err(QueueError::Invalid(format!(
            "Value {} for parameter VisibilityTimeout is invalid. Reason: Must be between 0 and 43200.",
            timeout.as_secs()
        )));
    }
    Ok(timeout)
}

fn content_id(body: &str) -> String {
    Sha256::digest(body.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sequence_text(sequence: u128) -> String {
    format!("{sequence:020}")
}

fn uuid(rng: &mut impl Rng) -> String {
    let hex = format!("{:032x}", rng.random::<u128>());
    format!("{}-{}-4{}-a{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    struct Rig {
        queue: Queue,
        rng: StdRng,
        now: Timestamp,
    }

    impl Rig {
        fn new(attributes: Attributes) -> Self {
            let (rng, now) = (StdRng::seed_from_u64(1), Timestamp::from_seconds(1_000_000));
            Self { queue: Queue::new(attributes), rng, now }
        }

        fn standard() -> Self {
            Self::new(Attributes::default())
        }

        fn fifo() -> Self {
            Self::new(Attributes { fifo: true, ..Attributes::default() })
        }

        fn pass(&mut self, seconds: u64) {
            self.now = self.now + Duration::from_secs(seconds);
        }

        fn try_send(&mut self, message: NewMessage) -> Result<Sent, QueueError> {
            self.queue.send(self.now, message, &mut self.rng)
        }

        fn send(&mut self, body: &str, group: &str, id: &str) -> Sent {
            let id = (!id.is_empty()).then(|| id.to_owned());
            let group = (!group.is_empty()).then(|| group.to_owned());
            self.try_send(NewMessage {
                body: body.into(),
                group,
                deduplication_id: id,
                ..NewMessage::default()
            })
            .unwrap()
        }

        fn receive(&mut self, max: usize) -> Vec<Received> {
            self.queue.receive(self.now, max, None, &mut self.rng).unwrap().0
        }

        fn bodies(&mut self) -> Vec<String> {
            self.receive(10).into_iter().map(|message| message.body).collect()
        }
    }

    #[test]
    fn a_message_is_hidden_while_in_flight_and_comes_back() {
        let mut rig = Rig::standard();
        rig.send("a", "", "");
        let first = rig.receive(10);
        assert_eq!((first.len(), first[0].receive_count), (1, 1));
        rig.pass(29);
        assert!(rig.receive(10).is_empty());
        rig.pass(1);
        let second = rig.receive(10);
        assert_eq!(second[0].receive_count, 2);
        assert_eq!(second[0].first_received_at, first[0].first_received_at);
        rig.queue.delete(rig.now, &first[0].receipt_handle).unwrap();
        assert_eq!(rig.queue.counts(rig.now).in_flight, 1, "an older handle deletes nothing");
        rig.queue.delete(rig.now, &second[0].receipt_handle).unwrap();
        assert_eq!(rig.queue.counts(rig.now), Counts::default());
        rig.queue.delete(rig.now, &second[0].receipt_handle).expect("a second delete is fine");
        assert!(rig.queue.delete(rig.now, "nonsense").is_err());
    }

    #[test]
    fn delay_is_the_queues_or_the_messages_own() {
        let mut rig =
            Rig::new(Attributes { delay: Duration::from_secs(60), ..Attributes::default() });
        rig.send("later", "", "");
        let own =
            NewMessage { body: "now".into(), delay: Some(Duration::ZERO), ..NewMessage::default() };
        rig.try_send(own.clone()).unwrap();
        assert_eq!(rig.queue.counts(rig.now), Counts { visible: 1, in_flight: 0, delayed: 1 });
        assert_eq!(rig.queue.next_change(rig.now), Some(rig.now + Duration::from_secs(60)));
        assert_eq!(rig.bodies(), ["now"]);
        rig.pass(60);
        assert_eq!(rig.bodies(), ["later", "now"], "in the order of sending");
        let long = NewMessage { delay: Some(Duration::from_secs(901)), ..own };
        assert!(rig.try_send(long).is_err());
    }

    #[test]
    fn a_duplicate_is_swallowed_for_five_minutes_even_after_its_original_is_deleted() {
        let mut rig = Rig::fifo();
        let original = rig.send("a", "g", "d");
        let received = rig.receive(1);
        rig.queue.delete(rig.now, &received[0].receipt_handle).unwrap();
        rig.pass(299);
        let duplicate = rig.send("other body", "h", "d");
        assert_eq!(duplicate, Sent { duplicate: true, ..original.clone() });
        assert!(rig.receive(10).is_empty());
        rig.pass(1);
        assert_ne!(rig.send("a", "g", "d").message_id, original.message_id);
        assert_eq!(rig.bodies(), ["a"]);
    }

    #[test]
    fn deduplication_may_be_by_content_and_by_group() {
        let content =
            Attributes { fifo: true, content_based_deduplication: true, ..Attributes::default() };
        let mut rig = Rig::new(content);
        rig.send("a", "g", "");
        assert!(rig.send("a", "h", "").duplicate);
        assert!(!rig.send("b", "g", "").duplicate);
        let by_group =
            Attributes { fifo: true, deduplicate_by_group: true, ..Attributes::default() };
        let mut rig = Rig::new(by_group);
        rig.send("a", "g", "d");
        assert!(!rig.send("a", "h", "d").duplicate);
        assert!(rig.send("a", "g", "d").duplicate);
    }

    #[test]
    fn a_group_keeps_its_order_and_waits_for_what_is_in_flight() {
        let mut rig = Rig::fifo();
        for (body, group) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("a3", "a")] {
            rig.send(body, group, body);
        }
        let first = rig.receive(2);
        assert_eq!(first.iter().map(|m| m.body.as_str()).collect::<Vec<_>>(), ["a1", "a2"]);
        assert!(first[0].sequence_number < first[1].sequence_number);
        assert_eq!(rig.bodies(), ["b1"], "a3 waits for its group");
        rig.queue.delete(rig.now, &first[0].receipt_handle).unwrap();
        assert!(rig.receive(10).is_empty(), "a2 is still in flight");
        rig.queue.change_visibility(rig.now, &first[1].receipt_handle, Duration::ZERO).unwrap();
        assert_eq!(rig.bodies(), ["a2", "a3"]);
    }

    #[test]
    fn a_fifo_handle_expires_with_its_visibility() {
        let mut rig = Rig::fifo();
        rig.send("a", "g", "d");
        let received = rig.receive(1);
        rig.pass(30);
        assert!(matches!(
            rig.queue.delete(rig.now, &received[0].receipt_handle),
            Err(QueueError::Invalid(message)) if message.contains("expired")
        ));
        assert_eq!(
            rig.queue.change_visibility(rig.now, &received[0].receipt_handle, Duration::ZERO),
            Err(QueueError::NotInFlight)
        );
    }

    #[test]
    fn visibility_can_be_moved_up_to_twelve_hours() {
        let mut rig = Rig::standard();
        rig.send("a", "", "");
        let handle = rig.receive(1)[0].receipt_handle.clone();
        let change = |rig: &mut Rig, seconds| {
            rig.queue.change_visibility(rig.now, &handle, Duration::from_secs(seconds))
        };
        assert!(change(&mut rig, 43_201).is_err());
        change(&mut rig, 100).unwrap();
        rig.pass(99);
        assert!(rig.receive(1).is_empty());
        rig.pass(1);
        assert_eq!(rig.receive(1).len(), 1);
    }

    #[test]
    fn a_message_received_too_often_becomes_a_dead_letter() {
        let redrive = Redrive { target_arn: "arn:dlq".into(), max_receive_count: 2 };
        let fifo = Attributes { fifo: true, redrive: Some(redrive), ..Attributes::default() };
        let mut rig = Rig::new(fifo);
        let sent = rig.send("bad", "g", "d");
        rig.send("good", "g", "e");
        for _ in 0..2 {
            assert_eq!(rig.bodies(), ["bad", "good"]);
            rig.pass(30);
        }
        let (received, dead) = rig.queue.receive(rig.now, 10, None, &mut rig.rng).unwrap();
        assert!(received.is_empty());
        assert_eq!(dead.len(), 2);
        assert_eq!(dead[0].target_arn, "arn:dlq");
        let mut letters = Rig::fifo();
        letters.now = rig.now;
        for letter in dead {
            letters.queue.accept(letters.now, letter);
        }
        let received = letters.receive(10);
        assert_eq!(received[0].message_id, sent.message_id);
        assert_eq!((received[0].group.as_deref(), received[0].receive_count), (Some("g"), 1));
        assert_eq!(received[0].sent_at, rig.now, "a FIFO dead-letter queue counts age afresh");
        assert_eq!(received[1].body, "good");
    }

    #[test]
    fn a_standard_dead_letter_keeps_its_age() {
        let redrive = Redrive { target_arn: "arn:dlq".into(), max_receive_count: 1 };
        let mut rig = Rig::new(Attributes { redrive: Some(redrive), ..Attributes::default() });
        rig.send("bad", "", "");
        let sent_at = rig.receive(1)[0].sent_at;
        rig.pass(30);
        let (_, mut dead) = rig.queue.receive(rig.now, 10, None, &mut rig.rng).unwrap();
        let mut letters = Rig::standard();
        letters.now = rig.now;
        letters.queue.accept(rig.now, dead.remove(0));
        assert_eq!(letters.receive(1)[0].sent_at, sent_at);
    }

    #[test]
    fn messages_are_kept_as_long_as_the_queue_says() {
        let hour = Attributes { retention: Duration::from_secs(3600), ..Attributes::default() };
        let mut rig = Rig::new(hour);
        rig.send("a", "", "");
        rig.pass(3599);
        assert_eq!(rig.queue.counts(rig.now).visible, 1);
        rig.pass(1);
        assert_eq!(rig.queue.counts(rig.now).visible, 0);
    }

    #[test]
    fn a_purge_takes_all_and_forgets_no_duplicate() {
        let mut rig = Rig::fifo();
        rig.send("a", "g", "d");
        rig.queue.purge();
        assert!(rig.receive(10).is_empty());
        assert!(rig.send("a", "g", "d").duplicate);
    }

    #[test]
    fn what_the_queue_type_does_not_have_is_refused() {
        let message = |group: Option<&str>, id: Option<&str>, delay: Option<u64>| NewMessage {
            body: "a".into(),
            group: group.map(str::to_owned),
            deduplication_id: id.map(str::to_owned),
            delay: delay.map(Duration::from_secs),
            ..NewMessage::default()
        };
        let mut fifo = Rig::fifo();
        assert_eq!(
            fifo.try_send(message(None, Some("d"), None)),
            Err(QueueError::Missing("MessageGroupId"))
        );
        assert!(fifo.try_send(message(Some("g"), None, None)).is_err());
        assert!(fifo.try_send(message(Some("g"), Some("d"), Some(0))).is_err());
        let mut standard = Rig::standard();
        assert!(standard.try_send(message(None, Some("d"), None)).is_err());
        assert!(
            standard.try_send(message(Some("g"), None, Some(5))).is_ok(),
            "fair queues take groups"
        );
    }

    #[test]
    fn group_ids_are_bounded() {
        let mut rig = Rig::fifo();
        let mut valid = |group: &str| {
            let (group, id) = (Some(group.to_owned()), Some("d".to_owned()));
            rig.try_send(NewMessage {
                body: "a".into(),
                group,
                deduplication_id: id,
                ..NewMessage::default()
            })
            .is_ok()
        };
        assert!(valid(&"x".repeat(128)) && valid("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"));
        assert!(!valid(&"x".repeat(129)) && !valid("") && !valid("a b") && !valid("é"));
    }

    #[test]
    fn bodies_are_bounded() {
        let mut rig = Rig::standard();
        let mut send = |body: String| rig.try_send(NewMessage { body, ..NewMessage::default() });
        assert_eq!(send(String::new()), Err(QueueError::Missing("MessageBody")));
        assert_eq!(send("\u{1}".into()), Err(QueueError::Contents));
        assert!(send("x".repeat(MESSAGE_BYTES_MAX)).is_ok());
        assert!(send("x".repeat(MESSAGE_BYTES_MAX + 1)).is_err());
        let value = MessageAttribute { data_type: "String".into(), value: b"abc".to_vec() };
        let attributes = BTreeMap::from([("Name".to_owned(), value)]);
        assert_eq!(
            size(&NewMessage { body: "12".into(), attributes, ..NewMessage::default() }),
            2 + 4 + 6 + 3
        );
    }

    #[test]
    fn batches_are_checked_before_anything_is_done() {
        let check = |ids: &[&str], bytes| check_batch(ids.iter().copied(), bytes);
        assert_eq!(check(&["a", "b-_1"], 10), Ok(()));
        assert_eq!(check(&[], 0), Err("EmptyBatchRequest"));
        let eleven: Vec<String> = (0..11).map(|n| n.to_string()).collect();
        let eleven: Vec<&str> = eleven.iter().map(String::as_str).collect();
        assert_eq!(check(&eleven, 0), Err("TooManyEntriesInBatchRequest"));
        assert_eq!(check(&["a", "a"], 0), Err("BatchEntryIdsNotDistinct"));
        assert_eq!(check(&["a b"], 0), Err("InvalidBatchEntryId"));
        assert_eq!(check(&["a"], MESSAGE_BYTES_MAX + 1), Err("BatchRequestTooLong"));
        let mut rig = Rig::standard();
        assert!(rig.queue.receive(rig.now, 0, None, &mut rig.rng).is_err());
        assert!(rig.queue.receive(rig.now, 11, None, &mut rig.rng).is_err());
    }
}
