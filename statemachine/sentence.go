package statemachine

import (
	"fmt"
	"strings"
	"time"

	historyv1 "github.com/sagad/sagad/proto/gen/sagad/history/v1"
)

// Sentence tells a fact in one English sentence, without payloads.
func Sentence(fact *historyv1.Fact) string {
	switch f := fact.GetKind().(type) {
	case *historyv1.Fact_Started:
		e := f.Started
		return fmt.Sprintf("%s version %d started%s.", e.GetDefinition(), e.GetVersion(), by(e.GetActor()))
	case *historyv1.Fact_AttemptScheduled:
		e := f.AttemptScheduled
		gen := ""
		if e.GetGeneration() > 1 {
			gen = fmt.Sprintf(" (generation %d)", e.GetGeneration())
		}
		return fmt.Sprintf("Attempt %d of %s was sent%s; %s.", e.GetAttempt(), callWords(e.GetCall()), gen, until(e.GetDeadlineUs()))
	case *historyv1.Fact_AttemptEnded:
		e := f.AttemptEnded
		s := fmt.Sprintf("Attempt %d of %s %s", e.GetAttempt(), callWords(e.GetCall()), outcomeWords(e.GetOutcome()))
		if e.GetUnusable() {
			s += ", but its output can't be used"
		}
		if e.GetGiveUp() {
			s += " and asked not to be tried again"
		}
		return s + errorWords(e.GetError()) + "."
	case *historyv1.Fact_RetryPlanned:
		e := f.RetryPlanned
		return fmt.Sprintf("Attempt %d of %s will be made at %s.", e.GetAttempt(), callWords(e.GetCall()), clock(e.GetAtUs()))
	case *historyv1.Fact_CallGivenUp:
		e := f.CallGivenUp
		why := map[historyv1.GiveUpReason]string{
			historyv1.GiveUpReason_GIVE_UP_REASON_EXHAUSTED:  "it is out of attempts",
			historyv1.GiveUpReason_GIVE_UP_REASON_NO_RETRY:   "another attempt wouldn't help",
			historyv1.GiveUpReason_GIVE_UP_REASON_UNWINDING:  "the saga unwinds",
			historyv1.GiveUpReason_GIVE_UP_REASON_EXPRESSION: "its input can't be built",
		}[e.GetReason()]
		return fmt.Sprintf("%s was given up: %s%s.", upper(callWords(e.GetCall())), why, errorWords(e.GetError()))
	case *historyv1.Fact_BranchTaken:
		if f.BranchTaken.GetCondition() {
			return fmt.Sprintf("The condition of %s holds.", f.BranchTaken.GetName())
		}
		return fmt.Sprintf("The condition of %s doesn't hold.", f.BranchTaken.GetName())
	case *historyv1.Fact_CancelRequested:
		return fmt.Sprintf("A cancel was asked for%s: %s.", by(f.CancelRequested.GetActor()), orNone(f.CancelRequested.GetReason()))
	case *historyv1.Fact_DeadlinePassed:
		return "The saga's deadline passed."
	case *historyv1.Fact_UnwindStarted:
		return "The saga turned back: " + CauseWords(f.UnwindStarted.GetCause()) + "."
	case *historyv1.Fact_LateResult:
		e := f.LateResult
		return fmt.Sprintf("A result of attempt %d of %s came late and was not used: it %s%s.", e.GetAttempt(), callWords(e.GetCall()), outcomeWords(e.GetOutcome()), errorWords(e.GetError()))
	case *historyv1.Fact_ConflictingResult:
		e := f.ConflictingResult
		return fmt.Sprintf("Attempt %d of %s was answered a second time, differently: it %s%s.", e.GetAttempt(), callWords(e.GetCall()), outcomeWords(e.GetOutcome()), errorWords(e.GetError()))
	case *historyv1.Fact_ItemOpened:
		e := f.ItemOpened
		s := fmt.Sprintf("Operations item %d was opened: %s", e.GetItem(), KindWords(e.GetKind()))
		if e.GetCall() != nil {
			s += ", " + callWords(e.GetCall())
		}
		return s + errorWords(e.GetError()) + "."
	case *historyv1.Fact_ItemChanged:
		return fmt.Sprintf("Operations item %d is %s%s.", f.ItemChanged.GetItem(), statusWord(f.ItemChanged.GetStatus()), errorWords(f.ItemChanged.GetError()))
	case *historyv1.Fact_ItemClosed:
		return fmt.Sprintf("Operations item %d was closed: %s.", f.ItemClosed.GetItem(), f.ItemClosed.GetHow())
	case *historyv1.Fact_OperatorActed:
		e := f.OperatorActed
		s := fmt.Sprintf("%s decided to %s item %d: %s", orSomeone(e.GetActor()), actionWord(e.GetAction()), e.GetItem(), orNone(e.GetReason()))
		if e.GetEvidence() != "" {
			s += " (evidence: " + e.GetEvidence() + ")"
		}
		return s + "."
	case *historyv1.Fact_SettledByHand:
		e := f.SettledByHand
		if e.GetSettlement() == historyv1.Settlement_SETTLEMENT_DONE {
			return fmt.Sprintf("%s counts as done, by hand.", upper(callWords(e.GetCall())))
		}
		return fmt.Sprintf("Nothing of %s stands, by hand.", e.GetCall().GetStep())
	case *historyv1.Fact_Completed:
		return "The saga completed."
	case *historyv1.Fact_Compensated:
		return "The saga is compensated: nothing of it stands."
	case *historyv1.Fact_Abandoned:
		e := f.Abandoned
		steps := make([]string, len(e.GetEffects()))
		for i, c := range e.GetEffects() {
			steps[i] = c.GetStep()
		}
		left := "no effects were left behind"
		if len(steps) > 0 {
			left = "left behind: " + strings.Join(steps, ", ")
		}
		return fmt.Sprintf("The saga was abandoned%s: %s; %s.", by(e.GetActor()), orNone(e.GetReason()), left)
	default:
		return flowSentence(fact)
	}
}

// flowSentence tells the facts of control flow.
func flowSentence(fact *historyv1.Fact) string {
	switch f := fact.GetKind().(type) {
	case *historyv1.Fact_CaseTaken:
		if f.CaseTaken.GetIndex() < 0 {
			return fmt.Sprintf("%s takes its default.", nameWords(f.CaseTaken))
		}
		return fmt.Sprintf("%s takes case %d.", nameWords(f.CaseTaken), f.CaseTaken.GetIndex()+1)
	case *historyv1.Fact_TimerStarted:
		return fmt.Sprintf("%s sleeps until %s.", nameWords(f.TimerStarted), clock(f.TimerStarted.GetAtUs()))
	case *historyv1.Fact_TimerFired:
		return fmt.Sprintf("The sleep of %s is over.", nameWords(f.TimerFired))
	case *historyv1.Fact_WaitStarted:
		if at := f.WaitStarted.GetDeadlineUs(); at != 0 {
			return fmt.Sprintf("%s waits until %s.", nameWords(f.WaitStarted), clock(at))
		}
		return fmt.Sprintf("%s waits.", nameWords(f.WaitStarted))
	case *historyv1.Fact_SignalReceived:
		return fmt.Sprintf("Signal %s came%s.", f.SignalReceived.GetSignal(), by(f.SignalReceived.GetActor()))
	case *historyv1.Fact_SignalConsumed:
		if f.SignalConsumed.GetSignal() == "" {
			return fmt.Sprintf("%s got its answer.", nameWords(f.SignalConsumed))
		}
		return fmt.Sprintf("%s took signal %s with key %q.", nameWords(f.SignalConsumed), f.SignalConsumed.GetSignal(), f.SignalConsumed.GetKey())
	case *historyv1.Fact_WaitExpired:
		return fmt.Sprintf("Nothing came for %s in time.", nameWords(f.WaitExpired))
	case *historyv1.Fact_BlockStarted:
		return fmt.Sprintf("%s began.", nameWords(f.BlockStarted))
	case *historyv1.Fact_ScopeStarted:
		return fmt.Sprintf("Part %d of %s began.", f.ScopeStarted.GetIndex(), nameWords(f.ScopeStarted))
	case *historyv1.Fact_ScopeUnwinding:
		if f.ScopeUnwinding.GetCause().GetError().GetCode() == CodeLostRace {
			return fmt.Sprintf("Part %d of %s isn't needed any more, and is undone: enough others are done.", f.ScopeUnwinding.GetIndex(), nameWords(f.ScopeUnwinding))
		}
		return fmt.Sprintf("Part %d of %s turned back: %s.", f.ScopeUnwinding.GetIndex(), nameWords(f.ScopeUnwinding), CauseWords(f.ScopeUnwinding.GetCause()))
	case *historyv1.Fact_ScopeEnded:
		if f.ScopeEnded.GetUndone() {
			return fmt.Sprintf("Part %d of %s is undone.", f.ScopeEnded.GetIndex(), nameWords(f.ScopeEnded))
		}
		return fmt.Sprintf("Part %d of %s is done.", f.ScopeEnded.GetIndex(), nameWords(f.ScopeEnded))
	case *historyv1.Fact_BlockEnded:
		return fmt.Sprintf("%s is done.", nameWords(f.BlockEnded))
	case *historyv1.Fact_Checkpointed:
		return fmt.Sprintf("Attempt %d of %s said what is needed to undo it.", f.Checkpointed.GetAttempt(), callWords(f.Checkpointed.GetCall()))
	case *historyv1.Fact_Progressed:
		return fmt.Sprintf("Attempt %d of %s was heard of.", f.Progressed.GetAttempt(), callWords(f.Progressed.GetCall()))
	case *historyv1.Fact_Claimed:
		return fmt.Sprintf("Worker %s has attempt %d of %s to itself.", orSomeone(f.Claimed.GetWorker()), f.Claimed.GetAttempt(), callWords(f.Claimed.GetCall()))
	case *historyv1.Fact_Paused:
		return fmt.Sprintf("The saga was paused%s: %s.", by(f.Paused.GetActor()), orNone(f.Paused.GetReason()))
	case *historyv1.Fact_Resumed:
		return fmt.Sprintf("The saga was resumed%s: %s.", by(f.Resumed.GetActor()), orNone(f.Resumed.GetReason()))
	case *historyv1.Fact_Migrated:
		return fmt.Sprintf("The saga goes on under version %d%s: %s.", f.Migrated.GetVersion(), by(f.Migrated.GetActor()), orNone(f.Migrated.GetReason()))
	case *historyv1.Fact_Provisional:
		return "The saga is done, until its parent is settled."
	case *historyv1.Fact_ParentSettled:
		return fmt.Sprintf("The saga's parent has ended as %s.", f.ParentSettled.GetStatus())
	default:
		return "Something happened that this version doesn't know."
	}
}

func nameWords(f interface {
	GetName() string
	GetItem() string
}) string {
	if f.GetItem() != "" {
		return f.GetName() + "[" + f.GetItem() + "]"
	}
	return f.GetName()
}

// CauseWords tells why a saga turned back.
func CauseWords(c *historyv1.Cause) string {
	switch c.GetKind() {
	case historyv1.CauseKind_CAUSE_KIND_REJECTED:
		return fmt.Sprintf("%s was rejected on attempt %d%s", c.GetStep(), c.GetAttempt(), errorWords(c.GetError()))
	case historyv1.CauseKind_CAUSE_KIND_GIVEN_UP:
		return fmt.Sprintf("%s was given up after attempt %d%s", c.GetStep(), c.GetAttempt(), errorWords(c.GetError()))
	case historyv1.CauseKind_CAUSE_KIND_CANCELLED:
		return "it was cancelled" + by(c.GetActor())
	case historyv1.CauseKind_CAUSE_KIND_DEADLINE:
		return "its deadline passed"
	case historyv1.CauseKind_CAUSE_KIND_OPERATOR:
		return fmt.Sprintf("%s stated that nothing of %s stands%s", orSomeone(c.GetActor()), c.GetStep(), errorWords(c.GetError()))
	case historyv1.CauseKind_CAUSE_KIND_EXPRESSION:
		return fmt.Sprintf("an expression of %s can't be evaluated%s", c.GetStep(), errorWords(c.GetError()))
	case historyv1.CauseKind_CAUSE_KIND_BLOCK:
		return fmt.Sprintf("%s failed%s", c.GetStep(), errorWords(c.GetError()))
	case historyv1.CauseKind_CAUSE_KIND_PARENT:
		return "the saga of which it is a child unwinds"
	default:
		return "for a reason that this version doesn't know"
	}
}

// KindWords tells what kind of item it is.
func KindWords(k historyv1.ItemKind) string {
	switch k {
	case historyv1.ItemKind_ITEM_KIND_COMPENSATION_EXHAUSTED:
		return "a compensation is out of attempts"
	case historyv1.ItemKind_ITEM_KIND_COMPENSATION_REFUSED:
		return "a compensation can't undo"
	case historyv1.ItemKind_ITEM_KIND_STEP_PAST_PIVOT:
		return "a step after the pivot can't be finished"
	case historyv1.ItemKind_ITEM_KIND_PIVOT_IN_DOUBT:
		return "whether the pivot happened isn't known"
	case historyv1.ItemKind_ITEM_KIND_STEP_HELD:
		return "a step is given up and held"
	case historyv1.ItemKind_ITEM_KIND_DEADLINE_AFTER_PIVOT:
		return "the deadline passed after the pivot"
	case historyv1.ItemKind_ITEM_KIND_LATE_EFFECT:
		return "an effect came to light that had been taken for settled"
	case historyv1.ItemKind_ITEM_KIND_CONFLICTING_RESULTS:
		return "two different results for one attempt"
	case historyv1.ItemKind_ITEM_KIND_EXPRESSION:
		return "an expression can't be evaluated"
	case historyv1.ItemKind_ITEM_KIND_POISON:
		return "a task kills its workers"
	case historyv1.ItemKind_ITEM_KIND_APPROVAL:
		return "a person is asked"
	case historyv1.ItemKind_ITEM_KIND_BLOCK_PAST_PIVOT:
		return "a wait or a block past the pivot failed"
	case historyv1.ItemKind_ITEM_KIND_QUARANTINED:
		return "the saga can't be read"
	default:
		return "something this version doesn't know"
	}
}

func callWords(c *historyv1.Call) string {
	s := c.GetStep()
	if c.GetItem() != "" {
		s += "[" + c.GetItem() + "]"
	}
	switch c.GetDirection() {
	case undo:
		return "the compensation of " + s
	case probe:
		return "the probe of " + s
	}
	return s
}

func outcomeWords(o historyv1.Outcome) string {
	switch o {
	case historyv1.Outcome_OUTCOME_HAPPENED:
		return "says that it happened"
	case historyv1.Outcome_OUTCOME_DID_NOT_HAPPEN:
		return "says that it did not happen"
	case historyv1.Outcome_OUTCOME_CANT_TELL:
		return "can't tell"
	case historyv1.Outcome_OUTCOME_SUCCEEDED:
		return "succeeded"
	case historyv1.Outcome_OUTCOME_REJECTED:
		return "was rejected"
	case historyv1.Outcome_OUTCOME_FAILED:
		return "failed"
	case historyv1.Outcome_OUTCOME_UNKNOWN:
		return "has an unknown outcome"
	case historyv1.Outcome_OUTCOME_NOTHING_TO_UNDO:
		return "found nothing to undo"
	default:
		return "ended"
	}
}

func errorWords(e *historyv1.Error) string {
	switch {
	case e == nil || e.GetCode() == "" && e.GetMessage() == "":
		return ""
	case e.GetCode() == "":
		return ": " + e.GetMessage()
	case e.GetMessage() == "":
		return ": " + e.GetCode()
	default:
		return ": " + e.GetCode() + ": " + e.GetMessage()
	}
}

func actionWord(a historyv1.OperatorAction) string {
	return strings.ToLower(strings.TrimPrefix(a.String(), "OPERATOR_ACTION_"))
}

func by(actor string) string {
	if actor == "" {
		return ""
	}
	return " by " + actor
}

func orSomeone(actor string) string {
	if actor == "" {
		return "Someone"
	}
	return actor
}

func orNone(reason string) string {
	if reason == "" {
		return "no reason given"
	}
	return reason
}

// upper begins a sentence; names stay as they are.
func upper(s string) string {
	if strings.HasPrefix(s, "the ") {
		return "T" + s[1:]
	}
	return s
}

func clock(us int64) string { return time.UnixMicro(us).UTC().Format("2006-01-02 15:04:05.000Z") }

func until(us int64) string {
	if us == 0 {
		return "it has no time limit"
	}
	return "it has until " + clock(us)
}
