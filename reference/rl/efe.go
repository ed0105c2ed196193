package rl

import "math"

// EFEKind says what compares the steps of a prediction with themselves in the opposite order. It is the option efe.bi.
type EFEKind int

const (
	// JensenShannon: JS(Q_t, Q_{T−1−t}), in [0, ln 2] and 0 at equality.
	JensenShannon EFEKind = iota
	// MixtureEntropy: H((Q_t + Q_{T−1−t})/2), which wonnowone/ARC-EFE@d9e76e2 calls JS. It is not 0 at equality.
	MixtureEntropy
)

var efeKinds = enumeration[EFEKind]("efe.bi", "js", "original")

func (k EFEKind) String() string { return efeKinds.text(k) }

// ParseEFEKind returns the comparison of that name.
func ParseEFEKind(s string) (EFEKind, error) { return efeKinds.parse(s) }

// EFEOptions are the weights λ of the terms of [EFE].
type EFEOptions struct {
	Risk, Ambiguity, Step, Consistency, Bidirectional, Z, Prompt, GridNorm float64
	Kind                                                                   EFEKind
}

// EFEDefaults returns the weights of wonnowone/ARC-EFE@d9e76e2, with the divergence that its name promises.
func EFEDefaults() EFEOptions {
	return EFEOptions{Risk: 1, Ambiguity: 0, Step: .1, Consistency: 1, Bidirectional: .5, Z: .2, Prompt: .3, GridNorm: .1}
}

// EFEBatch is one prediction of a grid of H×W cells in C colours by T steps, and what it is judged by.
type EFEBatch struct {
	Steps, H, W, Colors int

	Logits []float64 // [T, H, W, C]
	Target []int     // [H, W]; IgnoreLabel: not supervised
	Table  []float64 // [H, W, C], the learned preferences of this size, before the softmax
	Prompt []float64 // [P], P ≥ C
	Weight []float64 // [C, P], of the projection of the prompt
	Bias   []float64 // [C]
	Wanted []float64 // [H, W, C], the target preference: a distribution in every cell; nil: there is none
}

// EFETerms are the terms of [EFE], not yet weighted but for Step and GridNorm.
type EFETerms struct {
	GridMatching  float64 // the cross-entropy of the last step; Consistency is the same number once more
	Risk          float64 // mean over steps and cells of −Σ_c C_c·ln Q_c
	Uncertain     float64 // share of cells whose mean over the steps of max_c Q is at most 0.7: the inference risk
	ScaledRisk    float64 // Risk·(0.5 + 0.5·(1 − Uncertain))
	Ambiguity     float64 // mean over steps and cells of H(Q)
	Step          float64 // λ·T·g/(√g·(1 + 0.1·ln(1 + g))), g = HW/900
	Divergence    float64 // of the steps from their opposite order, see EFEKind
	Reversibility float64 // mean over the moves of ‖forward + backward‖²
	Bidirectional float64 // 0.7·Divergence + 0.3·Reversibility
	Z             float64 // KL(Wanted ‖ C)/(HWC)
	Prompt        float64 // −mean_t cos(mean over cells of the logits, projected prompt)
	GridNorm      float64 // λ·|g − 0.5| where g < 0.1 or g > 1, else 0
	Total         float64
}

// EFEGrads are the derivatives of the total, as long as what they belong to.
type EFEGrads struct{ Logits, Table, Prompt, Weight, Bias []float64 }

// sure is the probability up to which a cell counts as uncertain.
const sure = 0.7

// EFE returns the expected free energy of a prediction and its gradient:
//
//	total = grid_matching + λ_risk·risk′ + λ_amb·ambiguity + step′ + λ_cons·CE + λ_bi·BI + λ_z·Z + λ_prompt·PC + grid_norm
//
// with Q = softmax(Logits) and the preferences C = softmax over the colours of Table_c·σ(Prompt_c). The movement of a step is that
// of its centroid, the mean of the cells' centres in units of the grid's sides with the weights Σ_c c·Q_c; colour 0 is background,
// and a step of nothing else has its centroid in the middle. f_t = c_{t+1} − c_t goes forward, b_t = c_{T−2−t} − c_{T−1−t} backward.
// The cosine is that of torch: norms are at least 1e-8. Uncertain has no slope. Without a supervised cell the total is NaN.
//
// The terms are those of wonnowone/ARC-EFE@d9e76e2, loss_function.py; the ambiguity, which has weight 0 there, and the centroids are
// interpretations. It panics if a length does not fit, a size is not positive, or a target is not a colour.
func EFE(b EFEBatch, o EFEOptions) (EFETerms, EFEGrads) {
	steps, cells, colors := b.Steps, b.H*b.W, b.Colors
	need(steps > 0 && b.H > 0 && b.W > 0 && colors > 0 && len(b.Prompt) >= colors, "rl: EFE: a size is not positive, or the prompt is shorter than the colours")
	need(len(b.Logits) == steps*cells*colors && len(b.Target) == cells && len(b.Table) == cells*colors && len(b.Weight) == colors*len(b.Prompt) && len(b.Bias) == colors &&
		(b.Wanted == nil || len(b.Wanted) == cells*colors), badLength)

	var e EFETerms
	d := EFEGrads{make([]float64, len(b.Logits)), make([]float64, len(b.Table)), make([]float64, len(b.Prompt)), make([]float64, len(b.Weight)), make([]float64, len(b.Bias))}
	q := newDistributions(b.Logits, steps, cells, colors)
	dz := make([]float64, cells*colors) // by the logits of C

	last := (steps - 1) * cells * colors
	ce, dce := CrossEntropy(nil, b.Logits[last:], b.Target, colors, 0)
	e.GridMatching = ce
	for j, g := range dce {
		d.Logits[last+j] += float64((1 + o.Consistency) * g)
	}

	logC := b.preferences()
	e.Uncertain = q.uncertain()
	scale := 0.5 + float64(0.5*(1-e.Uncertain))
	e.Risk = q.risk(logC, float64(o.Risk*scale), d.Logits, dz)
	e.ScaledRisk = e.Risk * scale
	e.Ambiguity = q.ambiguity(o.Ambiguity, d.Logits)

	e.Divergence = q.divergence(o.Kind, float64(o.Bidirectional*0.7), d.Logits)
	e.Reversibility = q.reversibility(b.H, b.W, float64(o.Bidirectional*0.3), d.Logits)
	e.Bidirectional = float64(0.7*e.Divergence) + float64(0.3*e.Reversibility)

	if b.Wanted != nil {
		n := float64(cells * colors)
		for j, w := range b.Wanted {
			if w > 0 {
				e.Z += float64(w*(math.Log(w)-logC[j])) / n
			}
		}
		for i := range cells {
			var total float64
			for _, w := range b.Wanted[i*colors : (i+1)*colors] {
				total += w
			}
			for c := range colors {
				j := i*colors + c
				dz[j] += float64(o.Z*(float64(math.Exp(logC[j])*total)-b.Wanted[j])) / n
			}
		}
	}
	b.throughPreferences(dz, d)
	e.Prompt = b.consistency(o.Prompt, d)

	g := float64(cells) / 900
	e.Step = o.Step * float64(steps) * g / (math.Sqrt(g) * (1 + float64(0.1*math.Log1p(g))))
	if g < 0.1 || g > 1 {
		e.GridNorm = o.GridNorm * math.Abs(g-0.5)
	}
	e.Total = e.GridMatching + float64(o.Risk*e.ScaledRisk) + float64(o.Ambiguity*e.Ambiguity) + e.Step + float64(o.Consistency*e.GridMatching) +
		float64(o.Bidirectional*e.Bidirectional) + float64(o.Z*e.Z) + float64(o.Prompt*e.Prompt) + e.GridNorm
	return e, d
}

// preferences returns ln C [H, W, C].
func (b EFEBatch) preferences() []float64 {
	z := make([]float64, len(b.Table))
	for j, x := range b.Table {
		z[j] = x * sigmoid(b.Prompt[j%b.Colors])
	}
	return newDistributions(z, 1, len(z)/b.Colors, b.Colors).log
}

// throughPreferences takes the gradient by the logits of C to the table and the prompt.
func (b EFEBatch) throughPreferences(dz []float64, d EFEGrads) {
	for j, g := range dz {
		c := j % b.Colors
		s := sigmoid(b.Prompt[c])
		d.Table[j] += float64(g * s)
		d.Prompt[c] += float64(g * b.Table[j] * float64(s*(1-s)))
	}
}

// consistency returns −mean_t cos(mean over cells of the logits, Weight·Prompt + Bias) and adds its gradient, times weight.
func (b EFEBatch) consistency(weight float64, d EFEGrads) float64 {
	colors, cells, p := b.Colors, b.H*b.W, len(b.Prompt)
	v, dv := make([]float64, colors), make([]float64, colors)
	for c := range v {
		var sum float64
		for k, x := range b.Prompt {
			sum += float64(b.Weight[c*p+k] * x)
		}
		v[c] = sum + b.Bias[c]
	}
	var total float64
	for t := range b.Steps {
		m := make([]float64, colors)
		for i := range cells {
			for c := range m {
				m[c] += b.Logits[(t*cells+i)*colors+c] / float64(cells)
			}
		}
		cos, dm, dc := cosine(m, v)
		total -= cos / float64(b.Steps)
		w := -weight / float64(b.Steps)
		for c := range colors {
			dv[c] += float64(w * dc[c])
			for i := range cells {
				d.Logits[(t*cells+i)*colors+c] += float64(w*dm[c]) / float64(cells)
			}
		}
	}
	for c, g := range dv {
		d.Bias[c] += g
		for k, x := range b.Prompt {
			d.Weight[c*p+k] += float64(g * x)
			d.Prompt[k] += float64(g * b.Weight[c*p+k])
		}
	}
	return total
}

// cosine returns x·y/(max(‖x‖, 1e-8)·max(‖y‖, 1e-8)) and its derivatives.
func cosine(x, y []float64) (cos float64, dx, dy []float64) {
	const eps = 1e-8
	var dot, xx, yy float64
	for i := range x {
		dot += float64(x[i] * y[i])
		xx += float64(x[i] * x[i])
		yy += float64(y[i] * y[i])
	}
	nx, ny := max(math.Sqrt(xx), eps), max(math.Sqrt(yy), eps)
	cos = dot / nx / ny
	slope := func(a, b []float64, na, nb float64) []float64 {
		d := make([]float64, len(a))
		for i := range a {
			d[i] = b[i] / na / nb
			if na > eps {
				d[i] -= float64(cos*a[i]) / na / na
			}
		}
		return d
	}
	return cos, slope(x, y, nx, ny), slope(y, x, ny, nx)
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
