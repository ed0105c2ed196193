package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// Losses collects the numbers of the files of a run that declares nothing, to solve for what they have in common.
type Losses struct {
	loss, sums, rows, tokens, columns []float64 // of every file; sums of token_loss over the mask
	terms                             [3][]float64
	means                             [3][aggregations][]float64 // of a term that the files have of tokens alone, by aggregation
	own                               [2][aggregations][]float64 // of the token losses, and of these times the importance weights
	policy                            []float64                  // the policy losses
	whole                             bool                       // token_loss is all of the loss but for its aggregation
	parts                             bool                       // every file has loss, pg_loss and the terms that any has
	has                               [3]bool
	n                                 int
	alone                             wholes              // where the loss is all that says of its terms
	without                           [len(lacked)]wholes // the same, without tokens that are counted
	counted                           wholes              // the same, where rows without a token count
	empty                             bool                // there are such rows
	forms                             lossForms
	pairs                             pairLosses
	rewards                           loggedRewards
	divisors                          divisors
	beneath                           float64 // work of [Losses.Beneath]
}

// terms of a loss beside that of the policy: the option of the coefficient, its sign, and the number of a file.
var lossTerms = [3]struct {
	option, name string
	sign         float64
}{{"kl.beta", "kl_loss", 1}, {"entropy.coef", "entropy_loss", -1}, {"value.coef", "value_loss", 1}}

// Add takes the files of a batch.
func (l *Losses) Add(b *dump.Batch) {
	loss, policy := b.PerFile("loss"), b.PerFile("pg_loss")
	token := b.Token("token_loss")
	if l.n++; l.n == 1 {
		l.whole, l.parts = true, true
		for k, t := range lossTerms {
			l.has[k] = b.PerFile(t.name) != nil
		}
	}
	l.alone.add(b, l.n == 1)
	l.counted.empty = true
	l.counted.add(b, l.n == 1)
	l.empty = l.empty || slices.Contains(NewCase(b, &convention.Set{}, 0).tokensOfRows(), 0)
	for i := range l.without {
		l.without[i].add(withoutTokens(b, lacked[i].of), l.n == 1)
	}
	l.forms.add(b, l.n == 1)
	l.pairs.add(b)
	l.rewards.add(b)
	l.divisors.add(b)
	includes := b.Meta.TokenLossIncludesKL
	of := loss // of the tokens alone
	if policy != nil {
		of = policy
	}
	l.whole = l.whole && of != nil && token != nil && len(b.Missing) == 0 && (policy != nil ||
		b.PerFile("kl_loss") == nil && b.PerFile("entropy_loss") == nil && b.PerFile("value_loss") == nil && (b.Token("kl") == nil || includes != nil && *includes))
	l.parts = l.parts && loss != nil && policy != nil
	for k, t := range lossTerms {
		l.parts = l.parts && l.has[k] == (b.PerFile(t.name) != nil)
	}
	if l.parts {
		l.addParts(b, loss, policy)
	}
	for f, file := range b.Files {
		if l.whole {
			var sum, n float64
			for i := file.Lo * b.Cols; i < file.Hi*b.Cols; i++ {
				if b.Mask[i] {
					sum += token[i]
					n++
				}
			}
			l.rows, l.sums, l.tokens = append(l.rows, float64(file.Hi-file.Lo)*of[f]), append(l.sums, sum), append(l.tokens, n)
			l.columns = append(l.columns, float64(file.Cols))
		}
	}
}

// Coefficients solves for the coefficients of the terms of a loss: those of pairs, of rewards, of the terms that the files have ([Losses.ofParts]), or
// of those that the loss alone says of; nil where they are not known.
func (l *Losses) Coefficients() map[string]float64 {
	switch {
	case len(l.pairs.loss) > 0:
		found := l.pairs.coefficients()
		if found == nil {
			found = l.rewards.coefficients()
		}
		if w := l.pairs.beside.weight(); w > 0 {
			if found == nil {
				found = map[string]float64{}
			}
			found["dpo.nll_weight"] = w
		}
		return found
	case l.parts:
		return l.ofParts()
	}
	if f := l.fitted(); f != nil {
		return f.coefficients
	}
	return nil
}

// fitted is what the losses of the files alone say of their terms; nil where they say nothing.
func (l *Losses) fitted() *wholeFit {
	if f := l.alone.fit(); f != nil {
		return f
	}
	if l.empty {
		if f := l.counted.fit(); f != nil && l.counted.sure(f) { // one more reading of few losses, of which some may fit by chance
			return f
		}
	}
	if f, _ := l.forms.best(); f != nil {
		return f
	}
	if f := l.alone.misfit(); f != nil {
		return f
	}
	for i := range l.without {
		if f := l.without[i].fit(); f != nil && l.without[i].sure(f) {
			f.misdivided = lacked[i].id
			return f
		}
	}
	return nil
}

// Misdivided returns the bug of a loss that is one of a configuration but for a division too many ([wholes.misdivisions]), "" where there is none.
func (l *Losses) Misdivided() string {
	if f := l.fitted(); f != nil && !l.parts && len(l.pairs.loss) == 0 {
		return f.misdivided
	}
	return ""
}

// Entropy returns the aggregation that an entropy bonus has of its own (entropy.agg), "" where the losses show none.
func (l *Losses) Entropy() string {
	if f := l.fitted(); f != nil && !l.parts && len(l.pairs.loss) == 0 {
		return f.entropy
	}
	return ""
}

// Apart reports whether steps are missing between those whose losses say nothing of their terms: a generation batch is several steps one after the other.
func (l *Losses) Apart() bool {
	return l.alone.gap && !l.alone.no && l.alone.has[0] && l.alone.fit() == nil
}

// Generation returns the number of steps whose tokens together, by their number, sums over tokens are divided by: those of a generation batch, 0 where
// it is the tokens of the file or the step, or nothing shows it (TRL 1.16, GRPOTrainer._compute_loss, num_items_in_batch).
func (l *Losses) Generation() int {
	if f := l.fitted(); f != nil && !l.parts && len(l.pairs.loss) == 0 {
		return f.span
	}
	return 0
}

// Constant solves loss = Σ token_loss/(rows·L) for L, the same in all files: 0 unless there are three files, not all with one token count,
// which agree to 1e-4 on a whole number that is not the width of them all. Beside the loss of the policy its terms may stand in a loss.
func (l *Losses) Constant() float64 {
	if !l.whole || len(l.sums) < 3 {
		return l.constantOfWhole()
	}
	counts := map[float64]bool{}
	var first float64
	width := true
	for f, sum := range l.sums {
		counts[l.tokens[f]] = true
		x := sum / l.rows[f]
		if f == 0 {
			first = math.Round(x)
		}
		if !(first >= 1) || !(math.Abs(x-first) <= 1e-4*first) {
			return l.constantOfWhole()
		}
		width = width && first == l.columns[f]
	}
	if len(counts) < 2 || width {
		return 0
	}
	return first
}

// constantOfWhole is the constant that the losses with all their terms are divided by, a whole number.
func (l *Losses) constantOfWhole() float64 {
	f := l.fitted()
	if f == nil || f.constant == 0 {
		return 0
	}
	if x := math.Round(f.constant); x > 1 && math.Abs(f.constant-x) <= (1e-3+l.alone.unit)*x {
		return x
	}
	return 0
}

// LengthConstant solves for the constant L that sums over tokens are divided by where the aggregation is by a constant of the configuration and
// nobody declares it. The gradient, or the loss, is 1/L times what it is for L = 1:
//
//	1/L = Σ g·g₁ / Σ g₁²
//
// It is 0 where the aggregation is another, or where some file leaves more than 1 % of its size: then no constant explains it. What a number
// with four digits is near to, within the rounding of what it was solved from, is that number.
func LengthConstant(b *dump.Batch, set *convention.Set) float64 {
	if v := set.Value("agg.kind"); v.Kind() != convention.Enum || v.Text() != "seq_sum_const" {
		return 0
	}
	one := set.WithFact("loss_scale_factor", 1.0)
	for _, id := range []string{"gradient/dlogp", "aggregate/loss"} {
		ch := Find(id)
		t := b.Tensors[ch.Output]
		if t == nil {
			continue
		}
		c := NewCase(b, one, tol.U32)
		p := ch.Predict(c)
		if p == nil || !c.OK() || len(p.Want) != len(t.Data) {
			continue
		}
		var num, den, size float64
		for i, w := range p.Want {
			if g := t.Data[i]; (p.Judge == nil || p.Judge[i]) && !math.IsNaN(g+w) && !math.IsInf(g+w, 0) {
				num, den, size = num+float64(g*w), den+float64(w*w), size+float64(g*g)
			}
		}
		k := num / den
		if !(k > 0) || math.IsInf(k, 0) {
			return 0
		}
		var off float64
		for i, w := range p.Want {
			if g := t.Data[i]; (p.Judge == nil || p.Judge[i]) && !math.IsNaN(g+w) && !math.IsInf(g+w, 0) {
				off += float64((g - k*w) * (g - k*w))
			}
		}
		if off > 1e-4*size {
			return 0
		}
		u, _ := t.Type.Unit()
		return written(1/k, 1e-4+2*u)
	}
	return 0
}
