package check

import (
	"fmt"
	"math"

	"plumbline/verify/tol"
)

// Verdict is the outcome of a comparison.
type Verdict int

const (
	_ Verdict = iota // the zero value is no verdict: a forgotten one must not pass
	Pass
	Fail         // wrong
	Convention   // right under another legal option than the declared one
	Undetermined // the output is there, but an input or option is missing or the bound is void
	Warn         // advice that should be followed
	Note         // information
	NotSeen      // the input does not have what the check would look at
	Skip         // not run, for the reason given
	Untested     // agrees, and could not do otherwise: nothing in the input exercises what is checked
)

var verdicts = [...]string{"(no verdict)", "PASS", "FAIL", "CONVENTION", "UNDETERMINED", "WARN", "NOTE", "not seen", "SKIP", "untested"}

func (v Verdict) String() string { return verdicts[v] }

func (v Verdict) bad() bool { return v == Fail || v == Convention || v == Undetermined || v == Warn }

// ParseVerdict is the inverse of String.
func ParseVerdict(s string) (Verdict, error) {
	for v := Pass; v <= Untested; v++ {
		if s == v.String() {
			return v, nil
		}
	}
	return 0, fmt.Errorf("unknown verdict %q", s)
}

// FileLine is a line of a text file, from 1.
type FileLine struct {
	Path   string
	Number int
}

// Result is one finding.
type Result struct {
	Check   string // id, set by the suite
	Subject string // what was judged: a file, a tensor
	Verdict Verdict
	Reason  string // one line: the finding in words
	Formula string // what the output should be, where Metric only names a difference
	Steps   *Steps // of a run of several; nil where there are none

	// What was compared. Metric is "" where nothing was measured.
	Metric     string // formula, "max|QᵀQ − I|"
	Measured   float64
	Limit      float64
	Compared   int     // numbers that took part
	Resolution float64 // smallest relative fault the comparison can see, 0 where it has no such meaning
	Where      string  // file, tensor, index of the worst element and the numbers there

	Explanations []Explanation
	Class        []string // ids of the explanations that give the same numbers on these data, so that any of them may be true
	Facts        []Fact   // further numbers, in order
	Details      []string // more to say of the finding, for those who ask
	Fix          string
	Repeat       string    // flags that restrict the command of the run to this result; "": --select and the check
	Demanded     bool      // asked for by name: undecided then counts
	At           *FileLine // of a file, that the finding is about; nil: none
	Known        bool      // in the baseline: it changes no exit code
	Formal       bool      // of the form of the input: that it is right says nothing about what was computed
}

// Explanation says which bug produces what was seen.
type Explanation struct {
	Fault    string // id in the catalogue, "" for a plain reason
	Title    string
	Evidence string
	Lead     bool // fits only partly: worth a look, not a verdict

	Cause   string         // how the bug comes about
	Rows    []string       // of the catalogue
	Options []OptionChange // other legal values, under which the numbers are right
	Apart   float64        // how many limits the right numbers are away from those of the bug; 0 if not known
}

// OptionChange is an option that was followed with another value than the declared one.
type OptionChange struct {
	Option, Value string
	Declared      string // the value that was declared, by Origin
	Origin        string
}

// Steps counts the steps of a run that a check judged.
type Steps struct {
	Judged, Bad int
	First       int // the first bad one
}

// Fact is a named number that belongs to a result.
type Fact struct {
	Name  string
	Value float64
}

// Ratio returns Measured/Limit, the figure by which a margin shows: above 1 is a failure.
func (r *Result) Ratio() float64 {
	if r.Measured == r.Limit {
		return 1 // also 0/0: a limit of 0 that is met exactly
	}
	return r.Measured / r.Limit
}

// Bound judges measured <= limit. NaN on either side fails, and so does comparing nothing.
func Bound(subject, metric string, measured, limit float64, compared int) Result {
	r := Result{Subject: subject, Verdict: Pass, Metric: metric, Measured: measured, Limit: limit, Compared: compared}
	switch {
	case compared <= 0:
		r.Verdict, r.Reason = Fail, "nothing was compared"
	case math.IsNaN(limit) || limit < 0:
		r.Verdict, r.Reason = Fail, "the limit is not a number"
	case !(measured <= limit):
		r.Verdict = Fail
	}
	return r
}

// Origin says where the numbers of a comparison come from, which decides what too wide a bound means (tolerances 4.1).
type Origin int

const (
	FromUser Origin = iota // a file: too many undecidable elements leave the case UNDETERMINED
	Drawn                  // by the harness: then the case is a bad one, and fails
)

// Elements judges an element-wise comparison.
func Elements(subject, metric string, t *tol.Tally, from Origin) Result {
	r := Result{Subject: subject, Verdict: Pass, Metric: metric, Compared: t.N, Measured: t.Worst.Err, Limit: t.Worst.Bound, Resolution: t.Resolution()}
	if t.N > 0 {
		r.Where = fmt.Sprintf("element %d: got %.9g, want %.9g", t.Worst.Index, t.Worst.Out, t.Worst.Ref)
	}
	switch {
	case t.N == 0:
		r.Verdict, r.Reason = Fail, "nothing was compared"
	case t.Bad != "":
		r.Verdict, r.Reason = Fail, "bad case: "+t.Bad
	case t.Failed > 0:
		r.Verdict, r.Reason = Fail, fmt.Sprintf("%d of %d elements beyond their bound", t.Failed, t.N)
	case float64(t.Undetermined) > 0.05*float64(t.N):
		r.Verdict, r.Reason = Undetermined, fmt.Sprintf("the bound of %d of %d elements is too wide to tell", t.Undetermined, t.N)
		if from == Drawn {
			r.Verdict, r.Reason = Fail, "bad case: "+r.Reason
		}
	case t.Undetermined > 0:
		r.Reason = fmt.Sprintf("%d of %d elements have a bound too wide to tell", t.Undetermined, t.N)
	}
	return r
}
