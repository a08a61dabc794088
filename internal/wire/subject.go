package wire

import (
	"fmt"
	"strconv"
	"strings"

	workerv1 "github.com/sagad/sagad/proto/gen/sagad/worker/v1"
)

// Subjects. Tasks travel in the stream; results and announcements are requests of core NATS, stops are its messages.
const (
	// Stream is the work-queue stream that holds the tasks.
	Stream = "SAGAD_TASKS"
	// TaskSubjects are the stream's subjects.
	TaskSubjects = "sagad.task.>"
	// PlaceholderSubject is of a message that stays in the stream and is nobody's task: no namespace begins like this.
	PlaceholderSubject = "sagad.task._placeholder"
	// AnnounceSubjects are what engines listen on for workers that announce themselves.
	AnnounceSubjects = "sagad.announce.>"
	// AnnounceQueue is the queue group of the engines: one of them answers.
	AnnounceQueue = "sagad-engine"
	// InboxPrefix is how every reply subject begins that engines answer to. Anything else is not answered, so that
	// nobody can make an engine publish elsewhere with the engine's rights.
	InboxPrefix = "_INBOX"

	taskPrefix     = "sagad.task."
	resultPrefix   = "sagad.result."
	announcePrefix = "sagad.announce."
	stopPrefix     = "sagad.stop."
)

// Headers of messages. NATS headers are case-sensitive.
const (
	// HeaderMsgID is what JetStream tells duplicates by.
	HeaderMsgID = "Nats-Msg-Id"
	// HeaderProtocol is the version of the protocol that the body is written in.
	HeaderProtocol = "Sagad-Protocol"
	// HeaderResultSubject is where the results of a task message are to be sent.
	HeaderResultSubject = "Sagad-Result-Subject"
	// HeaderTime is the engine's time when it answered an announcement: microseconds since 1970.
	HeaderTime = "Sagad-Time"
	// HeaderTraceparent is a W3C trace context; of messages with one task.
	HeaderTraceparent = "traceparent"
)

// Direction words, at a fixed place in subjects, consumer names and keys.
const (
	wordDo    = "do"
	wordUndo  = "undo"
	wordProbe = "probe"
)

// DirectionWord is how d is spelled in subjects, consumer names and keys.
func DirectionWord(d workerv1.Direction) (string, error) {
	switch d {
	case workerv1.Direction_DIRECTION_DO:
		return wordDo, nil
	case workerv1.Direction_DIRECTION_UNDO:
		return wordUndo, nil
	case workerv1.Direction_DIRECTION_PROBE:
		return wordProbe, nil
	}
	return "", fmt.Errorf("direction %d: write DIRECTION_DO, DIRECTION_UNDO or DIRECTION_PROBE", d)
}

func parseDirection(word string) (workerv1.Direction, bool) {
	switch word {
	case wordDo:
		return workerv1.Direction_DIRECTION_DO, true
	case wordUndo:
		return workerv1.Direction_DIRECTION_UNDO, true
	case wordProbe:
		return workerv1.Direction_DIRECTION_PROBE, true
	}
	return 0, false
}

// Queue names what one durable consumer serves: an activity in a namespace, in one direction.
type Queue struct {
	Namespace string
	Activity  string
	Direction workerv1.Direction
}

// Valid says whether all parts of q are legal. Subjects and names may only be built from valid queues.
func (q Queue) Valid() error {
	if err := ValidNamespace(q.Namespace); err != nil {
		return err
	}
	if err := ValidActivity(q.Activity); err != nil {
		return err
	}
	_, err := DirectionWord(q.Direction)
	return err
}

// TaskSubject is the subject that q's tasks are published to: sagad.task.<namespace>.<do|undo|probe>.<activity>.
func (q Queue) TaskSubject() (string, error) { return q.subject(taskPrefix) }

// AnnounceSubject is the subject on which workers of q ask for their consumer: sagad.announce.<namespace>.<do|undo|probe>.<activity>.
func (q Queue) AnnounceSubject() (string, error) { return q.subject(announcePrefix) }

func (q Queue) subject(prefix string) (string, error) {
	if err := q.Valid(); err != nil {
		return "", err
	}
	word, _ := DirectionWord(q.Direction)
	return prefix + q.Namespace + "." + word + "." + q.Activity, nil
}

// ParseTaskSubject is the inverse of [Queue.TaskSubject].
func ParseTaskSubject(subject string) (Queue, error) { return parseSubject(taskPrefix, subject) }

// ParseAnnounceSubject is the inverse of [Queue.AnnounceSubject].
func ParseAnnounceSubject(subject string) (Queue, error) {
	return parseSubject(announcePrefix, subject)
}

func parseSubject(prefix, subject string) (Queue, error) {
	rest, ok := strings.CutPrefix(subject, prefix)
	parts := strings.SplitN(rest, ".", 3)
	if !ok || len(parts) != 3 {
		return Queue{}, fmt.Errorf("subject %.100q: want %s<namespace>.<do|undo|probe>.<activity>", subject, prefix)
	}
	d, ok := parseDirection(parts[1])
	if !ok {
		return Queue{}, fmt.Errorf("subject %.100q: want do, undo or probe, not %.20q", subject, parts[1])
	}
	q := Queue{Namespace: parts[0], Activity: parts[2], Direction: d}
	return q, q.Valid()
}

// Consumer is the name of q's durable consumer: <namespace>=<do|undo|probe>=<activity, with '~' for '.'>. Legal names hold
// neither '=' nor '~', so it can be taken apart again.
func (q Queue) Consumer() (string, error) {
	if err := q.Valid(); err != nil {
		return "", err
	}
	word, _ := DirectionWord(q.Direction)
	return q.Namespace + "=" + word + "=" + strings.ReplaceAll(q.Activity, ".", "~"), nil
}

// ParseConsumer is the inverse of [Queue.Consumer].
func ParseConsumer(name string) (Queue, error) {
	parts := strings.Split(name, "=")
	if len(parts) != 3 || strings.Contains(parts[2], ".") {
		return Queue{}, fmt.Errorf("consumer %.100q: want <namespace>=<do|undo|probe>=<activity>", name)
	}
	d, ok := parseDirection(parts[1])
	if !ok {
		return Queue{}, fmt.Errorf("consumer %.100q: want do, undo or probe, not %.20q", name, parts[1])
	}
	q := Queue{Namespace: parts[0], Activity: strings.ReplaceAll(parts[2], "~", "."), Direction: d}
	return q, q.Valid()
}

// NextSubject is where workers of q ask JetStream for messages.
func (q Queue) NextSubject() (string, error) {
	name, err := q.Consumer()
	if err != nil {
		return "", err
	}
	return "$JS.API.CONSUMER.MSG.NEXT." + Stream + "." + name, nil
}

// ResultSubject is where the results of a shard's sagas are sent.
func ResultSubject(shard int) string { return resultPrefix + strconv.Itoa(shard) }

// StopSubject is where the workers of an activity, all of them, are told which attempts aren't wanted any more:
// sagad.stop.<namespace>.<activity>.
func StopSubject(namespace, activity string) (string, error) {
	if err := ValidNamespace(namespace); err != nil {
		return "", err
	}
	if err := ValidActivity(activity); err != nil {
		return "", err
	}
	return stopPrefix + namespace + "." + activity, nil
}

// ReplyAllowed says whether an engine may answer to this reply subject: it must be somebody's inbox.
func ReplyAllowed(subject string) bool {
	return strings.HasPrefix(subject, InboxPrefix) && !strings.ContainsAny(subject, "*> \t\r\n")
}
