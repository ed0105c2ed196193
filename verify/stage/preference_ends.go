package stage

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

func answerTokensCheck() *Check {
	return &Check{
		ID: "preference/tokens", Stage: convention.LogP, Output: "",
		Title:   "every token of an answer has its log-prob",
		Formula: "no log-prob is exactly 0 at the last, or the first, tokens of all answers and at no other, in both passes or in one where the other's are not; none has the bits of a 16-bit format alone where their sums have more",
		Source:  "Rafailov et al. 2023, Eq. 7: π(y|x) of the whole answer, its EOS among it; TRL selective_log_softmax",
		Fix:     "sum over the mask of the answer, first token and EOS included, and take the log-softmax of logits.float()",
		Applies: func(c *Case) bool { return c.preference() && !c.unpaired() },
		Assert:  answersAgree,
	}
}

func answersAgree(c *Case) *Assertion {
	a := &Assertion{}
	silent := map[string][]Violation{}
	ends := map[string]edges{}
	seen := 0
	for _, s := range answerSums {
		x, mask, cols := c.AnswerTokens(s.output)
		if x == nil || c.halfDeclared() || c.unitStored(s.tokens) > 0 || slices.Contains(c.B.Meta.Lossy, s.tokens) {
			continue
		}
		seen++
		e := edgesOf(x, mask, cols)
		ends[s.output] = e
		a.Checked += e.rows
		if at := e.silent(); at != "" {
			silent[at] = append(silent[at], Violation{Row: -1, Col: -1, Fault: "DPO-TOKENS",
				Reason: fmt.Sprintf("%s is exactly 0 at the %s token of all %d answers, and near 0 at none of the %d between first and last: it is in the mask and was not summed", s.tokens, at, e.rows, len(e.inner))})
		}
		if v, found := c.roundedAnswer(s.tokens, s.output, e.inner); found {
			a.Violations = append(a.Violations, v)
		}
	}
	for _, list := range silent {
		if len(list) == seen && seen > 1 { // one function sums all of them, and no model is certain of all
			a.Violations = append(a.Violations, list...)
		}
	}
	a.Violations = append(a.Violations, silentPasses(ends)...)
	if v, found := c.formsDiffer(); found {
		a.Violations = append(a.Violations, v)
	}
	return a
}

// silentPasses finds a pass, of the policy or of the reference, whose log-probs of the last, or first, tokens of both answers are exactly 0 where the other
// pass has none that is near 0: a model that is certain of a token of every answer is not one that was, or becomes, uncertain of all of them.
func silentPasses(ends map[string]edges) (list []Violation) {
	for pass, other := range map[string]string{"logp_": "ref_", "ref_": "logp_"} {
		chosen, rejected := ends[pass+"chosen"], ends[pass+"rejected"]
		at := chosen.silent()
		if at == "" || rejected.silent() != at || !(ends[other+"chosen"].nearest(at) < certainMost && ends[other+"rejected"].nearest(at) < certainMost) {
			continue
		}
		list = append(list, Violation{Row: -1, Col: -1, Fault: "DPO-TOKENS",
			Reason: fmt.Sprintf("the token log-probs that %schosen and %srejected sum are exactly 0 at the %s token of all %d answers, where those of %schosen and %srejected are not: it is in the mask, and one pass leaves it out",
				pass, pass, at, chosen.rows+rejected.rows, other, other)})
	}
	return list
}

// formsDiffer finds log-probs of answers some of which are sums over their tokens and some of which are means: whatever the loss is of, it subtracts one from the other.
func (c *Case) formsDiffer() (Violation, bool) {
	forms := map[string][]string{}
	for _, s := range answerSums {
		if form := c.answerForm(s.output); form != "" {
			forms[form] = append(forms[form], s.output)
		}
	}
	if len(forms["sums"]) == 0 || len(forms["means"]) == 0 {
		return Violation{}, false
	}
	return Violation{Row: -1, Col: -1, Fault: "DPO-TOKENS", Reason: fmt.Sprintf("%s are sums of the log-probs of tokens in all answers, and %s are means of them",
		strings.Join(forms["sums"], " and "), strings.Join(forms["means"], " and "))}, true
}

// answerForm returns whether the log-probs of all answers are sums or means of those of their tokens, "" where they are neither or cannot be told.
func (c *Case) answerForm(output string) string {
	const part = 1e-4 // of a sum, more than it is off in float32
	x, mask, cols := c.AnswerTokens(output)
	got := c.B.Row(output)
	if x == nil || cols == 0 || len(got) != c.B.Rows || c.halfDeclared() {
		return ""
	}
	sums, means, rows := 0, 0, 0
	for r, y := range got {
		var sum, n float64
		for i := r * cols; i < (r+1)*cols; i++ {
			if mask[i] {
				sum, n = sum+x[i], n+1
			}
		}
		if n < 2 || sum == 0 {
			continue
		}
		rows++
		if math.Abs(y-sum) <= part*math.Abs(sum) {
			sums++
		}
		if math.Abs(y-sum/n) <= part*math.Abs(sum/n) {
			means++
		}
	}
	switch {
	case rows < 3:
	case sums == rows && means == 0:
		return "sums"
	case means == rows && sums == 0:
		return "means"
	}
	return ""
}

// edges are the ends of answers: of how many the first and the last log-prob are exactly 0, and the log-probs between them.
type edges struct {
	rows, first, last int
	firsts, lasts     []float64
	inner             []float64
}

// nearest returns the largest log-prob at the first or last tokens, 0 where there are no answers.
func (e edges) nearest(at string) float64 {
	x := e.lasts
	if at == "first" {
		x = e.firsts
	}
	if len(x) == 0 {
		return 0
	}
	return slices.Max(x)
}

func edgesOf(x []float64, mask []bool, cols int) (e edges) {
	for lo := 0; lo+cols <= len(x); lo += cols {
		var row []float64
		for i := lo; i < lo+cols; i++ {
			if mask[i] {
				row = append(row, x[i])
			}
		}
		if len(row) < 3 {
			continue
		}
		e.rows++
		if row[0] == 0 {
			e.first++
		}
		if row[len(row)-1] == 0 {
			e.last++
		}
		e.firsts, e.lasts = append(e.firsts, row[0]), append(e.lasts, row[len(row)-1])
		e.inner = append(e.inner, row[1:len(row)-1]...)
	}
	return e
}

// A model may be certain of how an answer begins or ends: p = 1 but for 1e-6 has the log-prob 0 in float32. It is certain of other tokens as well
// then, names and the second halves of words: of many answers with more tokens than these none is near 0 by chance.
const (
	certainRows  = 6
	certainInner = 4     // tokens of an answer between first and last, on average
	certainMost  = -1e-3 // the nearest of them to 0
)

// silent returns at which token of the answers, first or last, all log-probs are exactly 0; "" if at neither.
func (e edges) silent() string {
	switch {
	case e.rows < certainRows || len(e.inner) < certainInner*e.rows || slices.Max(e.inner) > certainMost || !fine(e.inner):
	case e.last == e.rows && e.first == 0:
		return "last"
	case e.first == e.rows && e.last == 0:
		return "first"
	}
	return ""
}

// fine reports whether numbers have more bits than 16-bit formats.
func fine(x []float64) bool {
	u := Grid(x)
	return u > 0 && u <= tol.U32
}

// roundedAnswer finds log-probs of tokens on the grid of a 16-bit format whose sums and losses are not: a sum of 16-bit numbers is one of 16 bits, so
// that they were cast in between. That the sums alone are not says nothing: a hook may have made them.
func (c *Case) roundedAnswer(tokens, sum string, inner []float64) (Violation, bool) {
	t := slices.DeleteFunc(slices.Clone(inner), func(x float64) bool { return x == 0 || !isFinite(x) })
	u := Grid(t)
	loss := c.B.Row("pair_loss")
	if loss == nil {
		loss = c.B.PerFile("loss")
	}
	return Violation{Row: -1, Col: -1, Got: u, Fault: "LOGP-BF16",
			Reason: fmt.Sprintf("all %d numbers of %s lie on the grid of %s, and their sums and the loss have more bits: the log-softmax ran in 16 bits and was cast behind it", len(t), tokens, halfNames[u])},
		len(t) >= few && (u == tol.UB || u == tol.U16) && fine(c.B.Row(sum)) && fine(loss)
}
