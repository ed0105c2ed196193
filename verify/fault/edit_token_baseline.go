package fault

import (
	"math"

	"plumbline/reference/rl"
	"plumbline/verify/stage"
)

// tokenBaseline is a variant of the baseline B_t = Σ_i G_it·W_it/Σ_i W_it of the responses i to one prompt at token t, W_it = Σ_{s≤t} (1 − 2π_s + Σπ²_s)·w²_s.
type tokenBaseline struct {
	one, pi, squares float64 // before 1, π and Σπ²
	power            float64 // of the importance weight
	token            bool    // W is that of the token alone, not the sum so far
	whole            bool    // W is that of the whole response at every token
	ended            bool    // responses that have ended are in the denominator
	local            bool    // G is the reward of the token
	first            bool    // G is that of the first token, the reward of the whole response
	others           bool    // the response itself is left out
	mean             bool    // every W is 1
	root             bool    // √W in place of W
	tail             float64 // tokens behind the second length, from where the longest response has no baseline
	logOld           string  // the pass whose probabilities are taken
}

// rightTokenBaseline is what verl 0.9.1 computes.
var rightTokenBaseline = tokenBaseline{one: 1, pi: -2, squares: 1, power: 2, logOld: "logp_old"}

// configured reports whether a program has the variant: verl corrects nothing where it has no weights, leaves the longest response its own baseline with
// handle_zero_tail=False and takes the engine's log-probs for those of the policy; a mean of the responses is a baseline that anybody may take.
func (v tokenBaseline) configured() bool {
	return v.power == 0 || math.IsInf(v.tail, 1) || v.logOld != rightTokenBaseline.logOld || v.mean
}

// tokenBaselineEdits returns edits of the optimal token baseline. One program has it: what it cannot be configured to is of none.
func tokenBaselineEdits(o *stage.Outcome) (list []edit) {
	if o.Check.ID != "advantage/return" || o.Case.Set.Value("adv.kind").String() != "optimal_token_baseline" || o.Case.B.Cols == 0 {
		return nil
	}
	add := func(title string, of func(v *tokenBaseline)) {
		v := rightTokenBaseline
		of(&v)
		list = append(list, edit{id: "ADV-CENTER", title: "the optimal token baseline: " + title, changes: 1, foreign: !v.configured(),
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return v.predict(c, ch) }})
	}
	score := func(title string, one, pi, squares float64) {
		add("the norm of the score is "+title+", where it should be 1 − 2π + Σπ²", func(v *tokenBaseline) { v.one, v.pi, v.squares = one, pi, squares })
	}
	score("1 − π + Σπ²", 1, -1, 1)
	score("1 + 2π + Σπ²", 1, 2, 1)
	score("1 − 2π − Σπ²", 1, -2, -1)
	score("1 − 2π", 1, -2, 0)
	score("1 + Σπ²", 1, 0, 1)
	score("1 − Σπ²", 1, 0, -1)
	score("1 − π", 1, -1, 0)
	score("Σπ² − 2π", 0, -2, 1)
	score("1 − 2π + 2·Σπ²", 1, -2, 2)
	score("Σπ²", 0, 0, 1)
	score("1: the tokens so far", 1, 0, 0)
	if o.Case.EnumOr("tis.level", "none") != "none" {
		add("the norm of the score is multiplied by the importance weight, where it should be by its square", func(v *tokenBaseline) { v.power = 1 })
		add("the norm of the score is not multiplied by the square of the importance weight", func(v *tokenBaseline) { v.power = 0 })
		add("the norm of the score is divided by the square of the importance weight", func(v *tokenBaseline) { v.power = -2 })
	}
	add("the weight is the norm of the token's score alone, not the sum up to it", func(v *tokenBaseline) { v.token = true })
	add("the weight is the norm of the whole response's score at every token", func(v *tokenBaseline) { v.whole = true })
	add("the weight is the root of the norm's sum", func(v *tokenBaseline) { v.root = true })
	add("every response has the same weight", func(v *tokenBaseline) { v.mean = true })
	add("responses that have ended still count in the sum of the weights", func(v *tokenBaseline) { v.ended = true })
	add("the reward of the token is averaged, not the sum from it on", func(v *tokenBaseline) { v.local = true })
	add("the reward of the whole response is averaged, not the sum from the token on", func(v *tokenBaseline) { v.first = true })
	add("the response itself is left out", func(v *tokenBaseline) { v.others = true })
	add("the longest response has one from one token behind the second length on", func(v *tokenBaseline) { v.tail = 1 })
	add("the longest response has none from the last token of the second length on", func(v *tokenBaseline) { v.tail = -1 })
	add("the longest response has itself for its baseline where it is alone", func(v *tokenBaseline) { v.tail = math.Inf(1) })
	for _, pass := range []string{"logp_new", "logp_gen", "logp_ref"} {
		if o.Case.B.Token(pass) != nil {
			add("its probabilities are those of "+pass, func(v *tokenBaseline) { v.logOld = pass })
		}
	}
	return list
}

// predict gives the advantages with the variant in place of the right baseline. What a weight is off by is what the right formula derives, of other factors.
func (v tokenBaseline) predict(c *stage.Case, ch *stage.Check) *stage.Prediction {
	const eps = 1e-8
	b := c.B
	p, ids := under(sameInput, c, ch), b.Row("group_id")
	reward, logp, squares, weights := b.Token("token_rewards"), b.Token(v.logOld), b.Token("sum_pi_squared"), b.Token("is_weights")
	if p == nil || len(ids) != b.Rows || len(reward) != len(b.Mask) || len(logp) != len(reward) || len(squares) != len(reward) || len(p.Want) != len(reward) {
		return nil
	}
	corrected := c.EnumOr("tis.level", "none") != "none"
	if corrected && len(weights) != len(reward) {
		return nil
	}
	togo := rl.RewardToGo(nil, reward, b.Mask, b.Rows, b.Cols, 1, rl.HoleCarry)
	norm, size := make([]float64, len(reward)), make([]float64, len(reward)) // W, and the sum of its terms' sizes
	goal := make([]float64, len(reward))
	length := make([]float64, b.Rows)
	members := map[float64][]int{}
	for r, id := range ids {
		members[id] = append(members[id], r)
		var w, s float64
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if b.Mask[i] {
				length[r]++
				k, pi := 1.0, math.Exp(logp[i])
				if corrected {
					k = math.Pow(weights[i], v.power)
				}
				x := k * (v.one + v.pi*pi + v.squares*squares[i])
				if v.token {
					w, s = 0, 0
				}
				w += x
				s += k * (math.Abs(v.one) + math.Abs(v.pi)*pi*(1+math.Abs(logp[i])) + math.Abs(v.squares)*squares[i])
				switch goal[i] = togo[i]; {
				case v.local:
					goal[i] = reward[i]
				case v.first:
					goal[i] = togo[r*b.Cols]
				}
			}
			norm[i], size[i] = w, s
		}
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			switch {
			case v.mean:
				norm[i], size[i] = 1, 0
			case v.root:
				if !(norm[i] >= 0) {
					return nil
				}
				norm[i], size[i] = math.Sqrt(norm[i]), math.Sqrt(size[i])
			case v.whole:
				norm[i], size[i] = w, s
			}
		}
	}
	q := altered(p)
	for _, rows := range members {
		longest, first, second := -1, -1.0, -1.0
		for _, r := range rows {
			if l := length[r]; l > first {
				longest, first, second = r, l, first
			} else {
				second = max(second, l)
			}
		}
		for _, r := range rows {
			for t := range b.Cols {
				i := r*b.Cols + t
				if !b.Mask[i] {
					continue
				}
				q.Want[i] = togo[i]
				if len(rows) < 2 || r == longest && first > second && float64(t) >= second+v.tail {
					continue
				}
				var sum, total, off, moved float64
				for _, k := range rows {
					j := k*b.Cols + t
					if v.others && k == r || !b.Mask[j] && !v.ended {
						continue
					}
					total += norm[j]
					moved += size[j] + math.Abs(norm[j])
					if b.Mask[j] {
						sum += goal[j] * norm[j]
						off += math.Abs(goal[j]) * (size[j] + math.Abs(norm[j]))
					}
				}
				if v.others && total == 0 {
					continue
				}
				base := sum / (total + eps)
				q.Want[i] -= base
				q.Bound[i] += float64(b.Cols+len(rows)+8) * c.Unit * (off + math.Abs(base)*moved) / math.Abs(total+eps)
			}
		}
	}
	return q
}
