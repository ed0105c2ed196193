package projection

import (
	"fmt"
	"math"

	"plumbline/internal/format"
	"plumbline/verify/check"
	"plumbline/verify/tol"
)

// perPair judges every gradient that is there before and after projection.
func (in *Input) perPair(judge func(*facts, *pair) check.Result) ([]check.Result, error) {
	f, err := in.measure()
	if err != nil || !f.finite {
		return nil, err
	}
	var out []check.Result
	for _, p := range f.pairs {
		if p.raw.bad != "" || p.out.bad != "" {
			out = append(out, check.Result{Subject: p.out.name, Verdict: check.Skip, Reason: "not finite"})
			continue
		}
		out = append(out, judge(f, p))
	}
	return out, nil
}

// NoOp checks that the projection did anything.
var NoOp = &check.Check[*Input]{
	Name: "projection/no-op",
	Doc: `the projection changes a gradient that has a component along the basis

The two files are compared bit by bit. If they are equal although g − Q(Qᵀg) differs from g in some element by more than
rounding, the projection did nothing.`,
	Source: "fault H2 (a later commit of the source skipped the projection while its documents said that it worked)",
	Fix:    "call the projection, and test it with a gradient inside span(Q): the result must be about 0",
	Run: func(in *Input) ([]check.Result, error) {
		return in.perPair(func(f *facts, p *pair) check.Result {
			r := check.Result{Subject: p.out.name, Verdict: check.Pass, Metric: "elements that must change, unchanged", Compared: len(p.raw.v)}
			c, _, _ := p.raw.largest()
			switch {
			case p.identical && p.changed > 0:
				r.Verdict, r.Measured = check.Fail, float64(p.changed)
				r.Reason = fmt.Sprintf("no-op: the projected gradient equals the raw one bit by bit, while max|Qᵀg| = %.3g and %d of %d elements must change", c, p.changed, len(p.raw.v))
				r.Explanations = []check.Explanation{{Fault: "H2", Title: "the projection is a no-op", Evidence: "bit-identical before and after"}}
			case p.identical:
				r.Reason = fmt.Sprintf("unchanged, and rightly so: max|Qᵀg| = %.3g", c)
			}
			return r
		})
	},
}

// Formula checks the projected gradient element by element.
var Formula = &check.Check[*Input]{
	Name: "projection/formula",
	Doc: `the projected gradient is g − Q(Qᵀg) element by element

|p − (g − Qc)|_j <= R_j + Σ_k |q_jk|·L with c = Qᵀg in float64. R_j = 2(K+1)u·(Σ_k|q_jk·c_k| + |g_j|), u = 2⁻²⁴, is twice
the rounding of one row (a second pass is allowed) plus the storage of p; L = tol·‖g‖ is what gradient/component allows
along a column. Where Q is not quite orthonormal, p may follow one pass or two. In 16 bits, what rounding c, Qc and p can
do is a warning. Inside span(Q) at least 99 % of the component must be gone, whatever the norm.`,
	Source: source + " (g_proj = grad - Q @ (QT @ grad)); fault A5",
	Fix:    "g_proj = g − Q(Qᵀg) with this Q on this tensor; clip by one scalar, and add nothing afterwards",
	Run: func(in *Input) ([]check.Result, error) {
		return in.perPair(func(f *facts, p *pair) check.Result {
			if p.identical && p.changed > 0 {
				return check.Result{Subject: p.out.name, Verdict: check.Skip, Reason: "see projection/no-op"}
			}
			if in.broken(f) {
				return check.Result{Subject: p.out.name, Verdict: check.Skip, Reason: "the basis is not orthonormal, see basis/orthonormal: the formula is no projection"}
			}
			tight, low := p.fit()
			r := check.Elements(p.out.name, "|p − (g − Q(Qᵀg))|", tight, check.FromUser)
			r.Facts = []check.Fact{{Name: "‖g‖", Value: math.Sqrt(p.raw.norm2)}, {Name: "‖p‖", Value: math.Sqrt(p.out.norm2)}, {Name: "α", Value: p.alpha()}, {Name: "κ", Value: p.kappa()}}
			inside := p.insideSpan(f, in)
			if r.Verdict == check.Pass && inside.Verdict == check.Fail {
				r = inside
			}
			if r.Verdict != check.Fail {
				return r
			}
			r.Explanations = p.explain(in)
			switch s := p.alpha(); {
			case tight.Failed > 0 && low16(p.out.dtype) && low.Failed == 0:
				r.Verdict = check.Warn
				r.Reason += fmt.Sprintf(", but inside what work in %s can do", p.out.dtype)
				r.Explanations = []check.Explanation{{Fault: "LOW-PRECISION", Title: fmt.Sprintf("consistent with the projection having run in %s", p.out.dtype)}}
				r.Fix = "project in float32: Qᵀg in 16 bits leaves up to 0.4 % of the component behind"
			case inside.Verdict != check.Fail && p.fits(s, 0, in.tol()) && s > 0 && s < 1:
				r.Verdict = check.Warn
				r.Reason = fmt.Sprintf("p is %.6g·(g − Q(Qᵀg)): clipped by one scalar after projecting, which leaves the shield intact", s)
				r.Fix = "none needed if the gradient was clipped; else look for a scale applied twice"
			}
			return r
		})
	},
}

// insideSpan judges that the projection removed what it is there to remove, whatever the norm: an absolute limit of 1e-5
// says nothing about a gradient of norm 1e-6.
func (p *pair) insideSpan(f *facts, in *Input) check.Result {
	allowed := 1e-2*norm(p.raw.comp) + 1e-6*math.Sqrt(p.raw.norm2) + norm(p.out.fog)
	if low16(in.Basis.DType) {
		allowed += norm(defectTimes(f.gram, in.Basis.K, p.raw.comp, p.raw.cols))
	}
	left := norm(p.out.comp)
	r := check.Bound(p.out.name, "‖Qᵀp‖", left, allowed, len(p.out.comp))
	if r.Verdict == check.Fail {
		r.Reason = fmt.Sprintf("%.3g of the component is left: ‖Qᵀg‖ = %.3g before, ‖Qᵀp‖ = %.3g after", left/norm(p.raw.comp), norm(p.raw.comp), left)
	}
	return r
}

// Norm checks that the projection does not lengthen the gradient.
var Norm = &check.Check[*Input]{
	Name:   "projection/norm",
	Doc:    "the projection does not lengthen the gradient: ‖p‖ <= ‖g‖\n\nP is a contraction; rounding may add ‖R‖, R_j the room of projection/formula, and the limit of gradient/component.",
	Source: "shielded PPO, Projection Not Working",
	Fix:    "look for a sign: g + Q(Qᵀg) in place of g − Q(Qᵀg)",
	Run: func(in *Input) ([]check.Result, error) {
		return in.perPair(func(f *facts, p *pair) check.Result {
			before, after := math.Sqrt(p.raw.norm2), math.Sqrt(p.out.norm2)
			r := check.Bound(p.out.name, "‖p‖/‖g‖", after, before+math.Sqrt(p.room2)+in.tol()*before, len(p.out.v))
			if r.Verdict == check.Fail {
				r.Reason = fmt.Sprintf("‖g‖ = %.6g before, ‖p‖ = %.6g after", before, after)
				r.Explanations = p.explain(in)
			}
			return r
		})
	},
}

// alpha and kappa are the coefficients of p ≈ α·(g − Qc) + κ·Qc: 1 and 0 in a correct projection.
func (p *pair) alpha() float64 { return p.outDotRef / p.refNorm2 }

func (p *pair) kappa() float64 {
	var ac, cc float64
	for i, c := range p.raw.comp {
		ac += float64(p.out.comp[i] * c)
		cc += float64(c * c)
	}
	return ac / cc
}

// fits reports whether p = α·(g − Qc) + κ·Qc up to a share tol of ‖g‖, or what storage explains.
func (p *pair) fits(alpha, kappa, tolerance float64) bool {
	var cc, kc, diff float64
	for i, c := range p.raw.comp {
		a := p.out.comp[i]
		cc += float64(c * c)
		d := a - kappa*c
		diff += float64(d * d)
		kc += float64(a * a)
	}
	// ‖p‖² = ‖in span‖² + ‖outside‖²; outside must be α·ref and nothing else.
	outside := p.out.norm2 - kc
	rest := outside - 2*alpha*p.outDotRef + alpha*alpha*p.refNorm2
	room := max(tolerance*math.Sqrt(p.raw.norm2), 2*math.Sqrt(p.room2))
	return math.Sqrt(math.Abs(rest)) <= room+1e-7*math.Sqrt(p.out.norm2) && math.Sqrt(diff) <= room
}

// explain names the bug by the two coefficients.
func (p *pair) explain(in *Input) []check.Explanation {
	a, k := p.alpha(), p.kappa()
	tight, low := p.fit()
	near := func(x, y float64) bool { return math.Abs(x-y) <= 1e-3 }
	evidence := fmt.Sprintf("p = %.5g·(g − QQᵀg) + %.5g·QQᵀg", a, k)
	say := func(fault, title string) []check.Explanation {
		return []check.Explanation{{Fault: fault, Title: title, Evidence: evidence}}
	}
	if p.out.zero {
		return say("PROJ-ZERO", "the projected gradient is zero everywhere")
	}
	if p.fits(a, k, 1e-4) {
		switch {
		case near(a, 1) && near(k, 2):
			return say("PROJ-SIGN", "the component is added in place of subtracted: g + Q(Qᵀg)")
		case near(a, 1) && near(k, -1):
			return say("PROJ-TWICE-SUBTRACTED", "the component is subtracted twice (g − 2Q(Qᵀg), a reflection)")
		case near(a, 1) && near(k, 1):
			return say("H2", "the component is still there: nothing was projected")
		case near(a, 0) && near(k, 1):
			return say("PROJ-COMPLEMENT", "the projection keeps the protected part and removes the rest: Q(Qᵀg)")
		case near(a, -1):
			return say("PROJ-NEGATED", "the sign of the whole gradient is wrong")
		case near(a, 1):
			return say("PROJ-PARTIAL", fmt.Sprintf("only %.4g of the component is removed", 1-k))
		case near(a, k):
			return say("H2", "not projected, and scaled")
		case near(k, 0):
			return say("PROJ-SCALED", fmt.Sprintf("right up to the factor %.6g", a))
		}
		return say("", "a combination of the part inside and outside span(Q)")
	}
	if left := p.leftColumns(in.tol()); len(left) > 0 && len(left) < in.Basis.K && near(a, 1) {
		return []check.Explanation{{Fault: "PROJ-COLUMNS", Title: "some columns of Q are not projected out", Evidence: fmt.Sprintf("%d of %d components are unchanged, the first along column %d", len(left), in.Basis.K, left[0])}}
	}
	if s := p.spike; s.err2 > 0.99*p.err2 && len(p.out.v) > 1 {
		return []check.Explanation{{Fault: "PROJ-ONE-ELEMENT", Title: fmt.Sprintf("element %d alone is wrong", s.at), Evidence: fmt.Sprintf("got %.9g, want %.9g; %.2f %% of the squared error", s.got, s.want, 100*s.err2/p.err2)}}
	}
	if cos := a * math.Sqrt(p.refNorm2/p.out.norm2); !(math.Abs(cos) > 0.5) {
		return []check.Explanation{{Fault: "PROJ-OTHER-TENSOR", Title: "the projected file belongs to another gradient", Evidence: fmt.Sprintf("its cosine with g − Q(Qᵀg) is %.3g", cos)}}
	}
	if p.low16 != format.Unknown && low.Failed == 0 {
		return []check.Explanation{{Fault: "LOW-PRECISION", Title: fmt.Sprintf("the projection ran in %s", p.low16), Evidence: fmt.Sprintf("every element is a %s number, and inside the bound of that format", p.low16)}}
	}
	return []check.Explanation{{Fault: "PROJ-DECAY", Title: "something else was added after the projection (weight decay, noise, another term)", Evidence: "err/bound: " + tight.Ratios(), Lead: true}}
}

// leftColumns returns the columns whose component is the same before and after.
func (p *pair) leftColumns(limit float64) []int {
	var left []int
	unit := limit * max(math.Sqrt(p.raw.norm2), tol.Eta32)
	for i, c := range p.raw.comp {
		if p.raw.cols == 1 && math.Abs(c) > 10*unit && math.Abs(p.out.comp[i]-c) <= 1e-3*math.Abs(c) {
			left = append(left, i)
		}
	}
	return left
}

// explainComponent says what a component of the given size, relative to that of a vector in a random direction, hints at.
func (in *Input) explainComponent(f *facts, t *target, share float64) []check.Explanation {
	if p := t.pair; p != nil {
		if p.identical {
			return []check.Explanation{{Fault: "H2", Title: "the projection is a no-op", Evidence: "bit-identical before and after"}}
		}
		e := p.explain(in)
		if tight, _ := p.fit(); e[0].Lead && tight.Failed == 0 {
			return []check.Explanation{{Title: "right outside span(Q), too coarse inside it", Evidence: "Qᵀg was summed in too low a precision, or Q was rounded"}}
		}
		return e
	}
	evidence := fmt.Sprintf("‖Qᵀv‖ is %.3g of what a vector in a random direction has", share)
	one, at, _ := t.largest()
	if in.Basis.K > 1 && one*one > 0.98*float64(norm(t.comp)*norm(t.comp)) {
		return []check.Explanation{{Fault: "PROJ-COLUMNS", Title: fmt.Sprintf("column %d of Q is not projected out (or the trainer's basis differs in it)", at), Evidence: fmt.Sprintf("%.1f %% of ‖Qᵀv‖² lies along it", 100*one*one/(norm(t.comp)*norm(t.comp)))}}
	}
	never := check.Explanation{Fault: "PROJ-NEVER", Title: "never projected, projected on another tensor or in another order, or with another basis", Evidence: evidence, Lead: t.role != projectedGrad}
	if t.role == projectedGrad {
		if share > 0.3 {
			return []check.Explanation{never}
		}
		return []check.Explanation{{Title: "partly projected: too low a precision, or a part of the basis differs", Evidence: evidence, Lead: true}}
	}
	leak := check.Explanation{Fault: "H3a", Title: "the optimiser's leak: gradients are projected, but Adam scales each coordinate and leaves the subspace (or weight decay moves along it)", Evidence: evidence}
	if in.gradientsClean(f) {
		leak.Evidence = "the projected gradients pass, the weights do not; " + evidence
		return []check.Explanation{leak}
	}
	if share > 0.5 {
		return []check.Explanation{never, {Fault: leak.Fault, Title: leak.Title, Evidence: "possible, too: give --grad to tell them apart", Lead: true}}
	}
	return []check.Explanation{leak}
}

// gradientsClean reports whether projected gradients were given and all of them pass.
func (in *Input) gradientsClean(f *facts) bool {
	n := 0
	for _, t := range f.all() {
		if t.role == projectedGrad {
			n++
			c, _, _ := t.largest()
			if !(c < in.tol()*max(1, math.Sqrt(t.norm2))) {
				return false
			}
		}
	}
	return n > 0
}
