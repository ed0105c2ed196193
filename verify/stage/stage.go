// Package stage recomputes what a trainer dumped, one stage of the pipeline at a time.
//
// A [Check] predicts one output of a stage from the tensors that the stage reads, under named options, with a bound for what
// a correct implementation may be off; or it asserts what must hold of the data. [Judge] compares a prediction with what was
// dumped. Stages are judged locally, from dumped inputs: a bug is found where it is, and what it does further down is right
// again. An input that was not dumped is predicted in its turn.
package stage

import (
	"plumbline/verify/convention"
)

// Check is one output of a stage and how it comes about.
type Check struct {
	ID      string           // "advantage/group"
	Stage   convention.Stage // where it belongs
	Output  string           // the tensor or scalar it judges
	Title   string           // without a capital or a full stop
	Formula string           // as a failure prints it
	Source  string           // paper, equation, document; check codes of the catalogue (V16)
	Fix     string           // what to do about a failure

	// Exactly one of the two. Predict returns nil where the case lacks a tensor, an option or a fact, which the case has noted;
	// a nil Prediction without a note means that the check does not apply. Applies, if not nil, says without looking at
	// numbers whether the output is of this check's kind.
	Applies func(*Case) bool
	Predict func(*Case) *Prediction
	Assert  func(*Case) *Assertion

	// Options of a check that asserts: those under another value of which what breaks the rule is legal.
	Options []string
}

// Prediction is what an output should be.
type Prediction struct {
	// Want has the layout of the output; Bound is the error that a correct implementation may have in the case's unit, without
	// the rounding on storing.
	Want, Bound []float64

	// Judge marks the elements that are compared; nil: for per-token outputs those in the mask, else all.
	Judge []bool

	// Alt is another value that is as good where a decision lies within its own rounding error (a ratio on its clip bound);
	// NaN where there is none. nil: nowhere.
	Alt []float64

	// Near returns for an element that came out as out the nearest of the few values that rounding can give, and its bound there, which is
	// narrower than Bound; false where there is none. nil: nowhere.
	Near func(i int, out float64) (ref, bound float64, ok bool)

	// Half is the unit roundoff of the 16-bit type of the output where promotion decides what operations on it round to; else 0.
	Half float64

	// Scale is the size below which an error does not matter; 0 means the RMS of Want over the judged elements.
	Scale float64

	Got     []float64 // what to compare with, where the output is no tensor of that name
	GotUnit float64   // rounding unit of Got as stored

	// Terms are named intermediate numbers for the report of an element: "group mean" and the like.
	Terms func(i int) []Term
}

// Term is a named number in the derivation of an element.
type Term struct {
	Name  string
	Value float64
}

// Assertion is the outcome of a check that compares nothing: what was looked at and what broke the rule.
type Assertion struct {
	Checked    int // cells, rows or files looked at; 0: nothing to look at
	Violations []Violation
	Warning    bool // breaking the rule is advice, not a failure
	Note       string
}

// Violation is one place where a rule is broken.
type Violation struct {
	Reason   string // what is wrong there, in words
	Row, Col int    // −1 where it has no meaning
	Got      float64
	Fault    string // the bug of the catalogue that this is a sign of, by its mnemonic; "" if it has none
}

// registry is filled by init, since checks ask for the predictions of other checks.
var registry []*Check

func init() {
	for _, group := range []func() []*Check{
		maskChecks, signChecks, logpChecks, agreementChecks, klChecks, rewardChecks, advantageChecks, gaeChecks,
		ratioChecks, tokenLossChecks, aggregateChecks, gradientChecks, answerChecks, preferenceChecks, distillChecks, scalarChecks,
	} {
		registry = append(registry, group()...)
	}
}

// All returns the checks in the order of the stages. The slice is shared and must not be changed.
func All() []*Check { return registry }

// Find returns the check of that id, nil if there is none.
func Find(id string) *Check {
	for _, c := range registry {
		if c.ID == id {
			return c
		}
	}
	return nil
}
