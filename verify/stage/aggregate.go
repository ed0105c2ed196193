package stage

import (
	"math"

	"plumbline/verify/convention"
)

func aggregateChecks() []*Check {
	rlhf := func(c *Case) bool { return !c.preference() && !c.supervised() }
	return []*Check{{
		ID: "aggregate/num_items", Stage: convention.Aggregate, Output: "loss",
		Title:   "the token count that the trainer divides by",
		Formula: "num_items_in_batch = Σ mask over the micro-batches and ranks of the step, where a generation batch is one step",
		Source:  "TRL 1.16 dapo, transformers num_items_in_batch; V19 (trl#6024, #6439)",
		Fix:     "count the tokens after all masks are final, over the files that are accumulated into one step",
		Applies: func(c *Case) bool {
			return !math.IsNaN(c.FactOr("num_items_in_batch", math.NaN())) || len(c.B.Meta.Counts) > 0
		},
		Assert: assertNumItems,
	}, {
		ID: "aggregate/finite", Stage: convention.Aggregate, Output: "loss",
		Title:   "a finite loss",
		Formula: "the loss is finite; NaN or ±Inf in a masked cell does no harm if it is left out, and makes the loss NaN if it is multiplied by 0",
		Source:  "V06 (verl#2377, OpenRLHF#1240, open-instruct#1685)",
		Fix:     "select masked cells away (torch.where, masked_fill) instead of multiplying by the mask, and guard means of no tokens",
		Assert:  assertFinite,
	}, {
		ID: "aggregate/pg_loss", Stage: convention.Aggregate, Output: "pg_loss",
		Title:   "policy loss of a file",
		Formula: "Agg(token_loss without KL) as agg.kind and agg.denominator say",
		Source:  "TRL 1.16 _compute_loss, verl agg_loss, OpenRLHF aggregate_loss; V19",
		Fix:     "compare the denominator: tokens or rows, of the micro-batch, the rank or all ranks, padded or not",
		Applies: rlhf, Predict: predictPolicyLoss,
	}, {
		ID: "aggregate/kl_loss", Stage: convention.Aggregate, Output: "kl_loss",
		Title:   "KL term of a file",
		Formula: "Agg(kl), or kl.beta·Agg(kl)",
		Source:  "verl use_kl_loss, OpenRLHF use_kl_loss; V19",
		Fix:     "compare the denominator with that of the policy loss, and look for a mean over padding",
		Applies: rlhf, Predict: predictKLLoss,
	}, {
		ID: "aggregate/value_loss", Stage: convention.Aggregate, Output: "value_loss",
		Title:   "value loss of a file",
		Formula: "Agg(value.factor·max((v − R)², (clip(v, V ± value.clip) − R)²)) over value.mask, or times value.coef",
		Source:  "OpenAI baselines ppo2; TRL 1.12 PPO, verl compute_value_loss, OpenRLHF ValueLoss; V18",
		Fix:     "compare the factor ½, the clip range, and the mask: TRL PPO takes one token more than the response",
		Applies: rlhf, Predict: predictValueLoss,
	}, {
		ID: "aggregate/entropy_loss", Stage: convention.Aggregate, Output: "entropy_loss",
		Title:   "entropy term of a file",
		Formula: "±Agg(entropy), or times entropy.coef",
		Source:  "verl entropy_coeff, TRL 1.16 entropy_coef; V19",
		Fix:     "compare the mask and the denominator of the mean",
		Applies: rlhf, Predict: predictEntropyLoss,
	}, {
		ID: "aggregate/loss", Stage: convention.Aggregate, Output: "loss",
		Title:   "loss of a file",
		Formula: "Agg(token_loss) + kl.beta·Agg(kl) where token_loss lacks it + value.coef·value_loss − entropy.coef·Agg(entropy); Agg as agg.kind, agg.denominator and agg.div_ga say",
		Source:  "TRL 1.16 _compute_loss, verl agg_loss, OpenRLHF aggregate_loss; V19, V20",
		Fix:     "compare the denominator: tokens or rows, of the micro-batch, the rank or all ranks, padded or not; and the accumulation steps",
		Applies: rlhf, Predict: predictLoss,
	}}
}

// assertNumItems compares num_items_in_batch with the mask where both count the same tokens. A wrong count is named where one way of
// counting gives it, and no other does.
func assertNumItems(c *Case) *Assertion {
	got := c.FactOr("num_items_in_batch", math.NaN())
	micro := float64(c.B.Meta.MicroBatches)
	if !c.complete() {
		return nil
	}
	if len(c.B.Meta.Counts) > 0 {
		return c.differingItems()
	}
	tokens := 0.0
	for _, n := range c.tokensOfRows() {
		tokens += n
	}
	steps, others, whole := c.FactOr("steps_per_generation", micro)/micro, c.otherCounts, "step"
	if steps != 1 {
		step := tokens
		whole = "generation batch"
		if tokens = c.FactOr(GenerationTokens, math.NaN()); math.IsNaN(tokens) {
			return nil
		}
		others = func() []count { return c.otherCountsOf(steps, step, tokens) }
	}
	a := &Assertion{Checked: 1}
	if tokens < got && c.countsRejected() {
		return c.beforeRejection(tokens, got)
	}
	if tokens != got {
		v := Violation{Reason: "num_items_in_batch is not the number of tokens in the masks of the " + whole + ", " + plain(tokens), Row: -1, Col: -1, Got: got}
		for _, w := range others() {
			switch {
			case w.n != got || w.id == v.Fault:
			case v.Fault == "":
				v.Fault = w.id
				v.Reason += "; it is that of " + w.what
			default: // a rival gives the same number
				v.Fault = ""
				v.Reason += ", or that of " + w.what
				a.Violations = []Violation{v}
				return a
			}
		}
		if v.Fault == "" && c.countsLeftOut(got-tokens) {
			v.Fault = "AGG-COUNTS-MASKED"
			v.Reason += "; rows that have no token in the mask have as many"
		}
		a.Violations = []Violation{v}
	}
	return a
}

// countsLeftOut reports whether excess tokens are as many as the rows of a supervised batch may have that are not empty and have no label, one such row at least in each
// of its files: rows that something took out of the loss behind the count. Every one of them counts for one token at least.
func (c *Case) countsLeftOut(excess float64) bool {
	b := c.B
	t := b.Tensors["attention_mask"]
	if !c.supervised() || t == nil || t.Width == 0 || len(t.Data) != b.Rows*t.Width || len(b.Files) == 0 {
		return false
	}
	least, most := 0.0, 0.0
	labels := c.tokensOfRows()
	for _, f := range b.Files {
		some := false
		for r := f.Lo; r < f.Hi; r++ {
			if labels[r] > 0 {
				continue
			}
			seen := 0.0
			for _, x := range t.Data[r*t.Width : (r+1)*t.Width] {
				seen += x
			}
			if seen > 1 { // the first token of a text is predicted from nothing
				some = true
				most += seen - 1
			}
		}
		if some {
			least++
		}
	}
	return least == float64(len(b.Files)) && least <= excess && excess <= most
}

// tokensOfRows returns the number of true cells of every row.
func (c *Case) tokensOfRows() []float64 {
	n := make([]float64, c.B.Rows)
	for i := range c.B.Tokens() {
		n[i/c.B.Cols]++
	}
	return n
}

// count is a number of tokens by another way of counting: the bug that counts so, and what it counts.
type count struct {
	id, what string
	n        float64
}

// otherCounts are the token counts of programs with a bug, as far as the batch has what they count.
func (c *Case) otherCounts() []count {
	b := c.B
	rows := c.tokensOfRows()
	var tokens, fewer, more, cells float64
	for _, n := range rows {
		tokens, fewer, more = tokens+n, fewer+max(n-1, 0), more+n+1
	}
	for _, f := range b.Files {
		if f.Packed { // whose rows were taken apart
			cells += float64(f.Stored[0] * f.Stored[1])
			continue
		}
		cells += float64((f.Hi - f.Lo) * f.Cols)
	}
	list := []count{{"AGG-PAD-DENOMINATOR", "all cells, padding included", cells}, {"AGG-LENGTH-OFF-BY-ONE", "one token of every response too few", fewer},
		{"AGG-LENGTH-OFF-BY-ONE", "one token of every response too many", more}}
	empty := 0.0
	for _, n := range rows {
		if n == 0 {
			empty++
		}
	}
	if written := c.writtenTokens(); written != tokens && written > 0 {
		list = append(list, count{"AGG-COUNTS-MASKED", "the responses as they were sampled, up to EOS, before some of them were masked out", written})
	}
	if longest := c.FactOr("max_completion_length", float64(b.Cols)); empty > 0 { // a response that was cut off is as long as may be
		list = append(list, count{"AGG-COUNTS-MASKED", "the responses before those that were cut off were masked out", tokens + empty*longest})
	}
	if p := b.Row("prompt_len"); len(p) == b.Rows {
		prompts := 0.0
		for _, n := range p {
			prompts += n
		}
		list = append(list, count{"AGG-PROMPT-COUNTED", "prompts and responses", tokens + prompts})
	}
	if t := b.Tensors["attention_mask"]; t != nil {
		seen := 0.0
		for _, x := range t.Data {
			seen += x
		}
		if t.Width > b.Cols {
			list = append(list, count{"AGG-PROMPT-COUNTED", "the attention mask, prompts included", seen},
				count{"AGG-PAD-DENOMINATOR", "all cells of the sequences, prompts and padding included", float64(len(t.Data))})
		}
		if responses, ok := Attended(b); ok && responses != tokens {
			list = append(list, count{"AGG-COUNTS-MASKED", "the responses before some of their tokens were masked out", responses})
		}
	}
	if n := float64(b.Meta.MicroBatches); n > 1 {
		list = append(list, count{"AGG-GA-TWICE", "the tokens times the accumulation steps", n * tokens})
	}
	list = append(list, rankCounts(RankTokens(b))...)
	if len(b.Files) > 1 {
		for _, f := range b.Files {
			part := 0.0
			for r := f.Lo; r < f.Hi; r++ {
				part += rows[r]
			}
			list = append(list, count{"AGG-LOCAL-DENOMINATOR", "one micro-batch", part})
			if n := float64(b.Meta.MicroBatches); n > 1 && n*part != tokens {
				list = append(list, count{"AGG-LOCAL-DENOMINATOR", "one micro-batch, times the accumulation steps", n * part})
			}
		}
	}
	return list
}

// assertFinite looks for the cause of a loss that is not finite.
func assertFinite(c *Case) *Assertion {
	a := &Assertion{}
	for f, x := range c.B.PerFile("loss") {
		a.Checked++
		if !math.IsNaN(x) && !math.IsInf(x, 0) {
			continue
		}
		v := Violation{Reason: "the loss of " + c.B.Files[f].Name + " is not finite", Row: -1, Col: -1, Got: x}
		for _, name := range []string{"token_loss", "logp_new", "logp_old", "advantages", "kl", "entropy"} {
			in := c.Optional(name).X
			if i := c.notFinite(in, f, true); i >= 0 {
				v.Reason += ": " + name + " holds NaN or an infinity in the mask"
				v.Row, v.Col = i/c.B.Cols, i%c.B.Cols
				break
			}
			if i := c.notFinite(in, f, false); i >= 0 {
				v.Reason += ": " + name + " holds NaN or an infinity outside the mask, which times 0 is NaN"
				v.Fault = "NAN-OUTSIDE"
				v.Row, v.Col = i/c.B.Cols, i%c.B.Cols
				break
			}
		}
		if v.Row < 0 && c.emptyRow(f) {
			v.Reason += ": a row has no token, and its mean is 0/0"
			v.Fault = "NAN-EMPTY-ROW"
		}
		a.Violations = append(a.Violations, v)
	}
	return a
}

// emptyRow reports whether file f has a row without a true cell.
func (c *Case) emptyRow(f int) bool {
	for r := c.B.Files[f].Lo; r < c.B.Files[f].Hi; r++ {
		if c.last(r) < 0 {
			return true
		}
	}
	return false
}

// notFinite returns the first cell of file f, in or out of the mask, that is not finite, or −1.
func (c *Case) notFinite(x []float64, f int, in bool) int {
	if x == nil {
		return -1
	}
	for i := c.B.Files[f].Lo * c.B.Cols; i < c.B.Files[f].Hi*c.B.Cols; i++ {
		if c.B.Mask[i] == in && extent(c.B, i) && (math.IsNaN(x[i]) || math.IsInf(x[i], 0)) {
			return i
		}
	}
	return -1
}

// writtenTokens counts the tokens of responses as they were sampled, whatever the mask has of them: up to EOS, else all columns. Where no EOS is declared it
// is the token that ends every response that does not fill its columns. It is 0 where the ids do not say.
func (c *Case) writtenTokens() float64 {
	b, eos := c.B, c.eosIDs()
	if b.Token("response_ids") == nil || b.Cols == 0 {
		return 0
	}
	if eos == nil {
		for r := range b.Rows {
			last := c.last(r)
			if last < 0 || last+1 >= c.width(r) {
				continue
			}
			id, ok := b.TokenID(r, last)
			if !ok || eos != nil && !eos[id] {
				return 0
			}
			eos = map[int]bool{id: true}
		}
	}
	if eos == nil {
		return 0
	}
	n := 0.0
	for r := range b.Rows {
		for t := range c.width(r) {
			id, ok := b.TokenID(r, t)
			if !ok {
				return 0
			}
			if n++; eos[id] {
				break
			}
		}
	}
	return n
}
