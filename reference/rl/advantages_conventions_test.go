package rl

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// worked is the part of the worked batch of the conventions document that advantages are about: what each framework's own
// functions gave in float64 for one batch of 4×6.
type worked struct {
	Inputs struct {
		Val, Mask, Hole [][]float64
		Score           []float64
		Gamma, Lam      float64
	}
	GAEContiguous map[string]workedGAE       `json:"gae_contiguous"`
	GAEHole       map[string]workedGAE       `json:"gae_hole"`
	GroupAdv      map[string]json.RawMessage `json:"group_adv"`
	Whiten        map[string][][]float64     `json:"whiten"`
	Empty         map[string]any             `json:"masked_mean_empty"`
	NaNOutside    map[string]any             `json:"masked_mean_nan_outside_mask"`
	Single        map[string]json.RawMessage `json:"whiten_single_element"`
}

type workedGAE struct {
	Raw   [][]float64 `json:"adv_raw"`
	Ret   [][]float64 `json:"ret"`
	White [][]float64 `json:"adv_white"`
}

func loadWorked(t *testing.T) *worked {
	t.Helper()
	text, err := os.ReadFile("testdata/conventions.json")
	require.NoError(t, err)
	w := new(worked)
	require.NoError(t, json.Unmarshal(text, w))
	require.Len(t, w.Inputs.Val, 4)
	return w
}

// flat returns a matrix row-major.
func flat(x [][]float64) []float64 {
	var y []float64
	for _, r := range x {
		y = append(y, r...)
	}
	return y
}

// truth returns the mask of a matrix of 0 and 1.
func truth(x [][]float64) []bool {
	var m []bool
	for _, v := range flat(x) {
		m = append(m, v != 0)
	}
	return m
}

// off returns an error unless |got − want| ≤ tol at every element; NaN matches NaN only.
func off(got, want []float64, tol float64) error {
	if len(got) != len(want) || len(want) == 0 {
		return fmt.Errorf("%d elements, want %d and more than 0", len(got), len(want))
	}
	for i, w := range want {
		if g := got[i]; !(math.Abs(g-w) <= tol) && g != w && !(math.IsNaN(g) && math.IsNaN(w)) {
			return fmt.Errorf("element %d is %v, want %v", i, g, w)
		}
	}
	return nil
}

// workedProfile is one column of the table of PPO profiles, as far as advantages go.
type workedProfile struct {
	score  RewardOptions
	gae    GAEOptions
	mask   WhitenMask
	whiten WhitenOptions
}

// workedProfiles are the profiles whose numbers the batch has.
func workedProfiles() map[string]workedProfile {
	bessel := VarOptions{DDof: 1, Empty: EmptyError}
	verl := VarOptions{DDof: 1, Mean: MeanOptions{Eps: 1e-8, Outside: OutsideIgnore}, Empty: EmptyError, Single: SingleError}
	return map[string]workedProfile{
		"trl_ppo(score@eos+1)": {
			score:  RewardOptions{Index: ScoreEOSPlus1},
			gae:    GAEOptions{Hole: HoleNone, Value: ValueP1, Returns: ReturnsMaskedV},
			mask:   WhitenLength,
			whiten: WhitenOptions{Var: bessel, Scope: ScopeLocalBatch, Eps: 1e-8, Remask: true},
		},
		"verl": {
			gae:    GAEOptions{Hole: HoleCarry},
			whiten: WhitenOptions{Var: verl, Scope: ScopeGlobal, Eps: 1e-8},
		},
		"nemo": {
			gae:    GAEOptions{Hole: HoleCarry},
			whiten: WhitenOptions{Var: verl, Scope: ScopeGlobal, Eps: 1e-8, Remask: true},
		},
		"openrlhf": {
			gae:    GAEOptions{Hole: HoleZeroStep, Returns: ReturnsMaskedV},
			whiten: WhitenOptions{Scope: ScopeGlobal, EpsPlace: FloorVar, Eps: 1e-8},
		},
		"open_instruct_packed": {gae: GAEOptions{Hole: HoleCut}},
	}
}

// check compares a profile with the batch.
func (w *worked) check(p workedProfile, mask [][]float64, want workedGAE) error {
	const rows, cols = 4, 6
	m := truth(mask)
	p.gae.Gamma, p.gae.Lambda = w.Inputs.Gamma, w.Inputs.Lam
	b := Rollout{Rows: rows, Cols: cols, Value: flat(w.Inputs.Val), Mask: m}
	b.Reward = TokenRewards(nil, w.Inputs.Score, nil, m, nil, rows, cols, p.score)
	adv, ret := GAE(nil, nil, b, p.gae)
	if err := off(adv, flat(want.Raw), 1e-12); err != nil {
		return fmt.Errorf("advantages: %w", err)
	}
	if err := off(ret, flat(want.Ret), 1e-12); err != nil {
		return fmt.Errorf("returns: %w", err)
	}
	if want.White == nil {
		return nil
	}
	white, err := Whiten(nil, adv, p.mask.Of(m, rows, cols), rows, cols, p.whiten)
	if err != nil {
		return err
	}
	if err := off(white, flat(want.White), 1e-12); err != nil {
		return fmt.Errorf("whitened: %w", err)
	}
	return nil
}

func TestWorkedGAE(t *testing.T) {
	w := loadWorked(t)
	profiles := workedProfiles()
	require.Len(t, w.GAEContiguous, len(profiles))
	require.Len(t, w.GAEHole, len(profiles))
	for name, p := range profiles {
		require.NoError(t, w.check(p, w.Inputs.Mask, w.GAEContiguous[name]), "%s, contiguous", name)
		require.NoError(t, w.check(p, w.Inputs.Hole, w.GAEHole[name]), "%s, holes", name)
	}
}

// TestWorkedGAERejects plants one wrong option at a time in each profile; the batch must notice.
func TestWorkedGAERejects(t *testing.T) {
	w := loadWorked(t)
	type fault struct {
		name  string
		skip  map[string]bool // profiles whose numbers the fault cannot change
		plant func(p *workedProfile)
	}
	faults := []fault{
		{"score one token off", nil, func(p *workedProfile) {
			if p.score.Index = ScoreIndex(2 - int(p.score.Index)); p.score.Index == ScoreEOSPlus1 {
				p.score.Index = ScoreLastColumn
			}
		}},
		{"next hole rule", nil, func(p *workedProfile) { p.gae.Hole = (p.gae.Hole + 1) % 5 }},
		{"other value mask", map[string]bool{"verl": true, "nemo": true, "open_instruct_packed": true},
			func(p *workedProfile) { p.gae.Value = 1 - p.gae.Value }},
		{"returns remasked", map[string]bool{"open_instruct_packed": true}, func(p *workedProfile) { p.gae.Returns = ReturnsMasked }},
		{"vapo", nil, func(p *workedProfile) { p.gae.LambdaPolicy, p.gae.Alpha = LambdaVAPO, 1 }},
		{"other ddof", map[string]bool{"open_instruct_packed": true}, func(p *workedProfile) { p.whiten.Var.DDof = 1 - p.whiten.Var.DDof }},
		{"eps added to the deviation", map[string]bool{"open_instruct_packed": true}, func(p *workedProfile) { p.whiten.EpsPlace = AddStd }},
		{"mean added back", map[string]bool{"open_instruct_packed": true}, func(p *workedProfile) { p.whiten.Shift = ShiftFalseAddBack }},
		{"not shifted", map[string]bool{"open_instruct_packed": true}, func(p *workedProfile) { p.whiten.Shift = ShiftFalsePlain }},
		{"other remask", map[string]bool{"open_instruct_packed": true}, func(p *workedProfile) { p.whiten.Remask = !p.whiten.Remask }},
		{"mean.eps", map[string]bool{"open_instruct_packed": true}, func(p *workedProfile) { p.whiten.Var.Mean.Eps = 1e-8 - p.whiten.Var.Mean.Eps }},
		{"unmasked statistics", map[string]bool{"open_instruct_packed": true}, func(p *workedProfile) { p.mask = WhitenAll }},
	}
	for _, f := range faults {
		for name, p := range workedProfiles() {
			if f.skip[name] {
				continue
			}
			f.plant(&p)
			err := w.check(p, w.Inputs.Hole, w.GAEHole[name])
			require.Error(t, err, "%s: %s", name, f.name)
		}
	}
}

func TestWorkedWhiten(t *testing.T) {
	w := loadWorked(t)
	x, m := flat(w.Whiten["x"]), truth(w.Whiten["mask"])
	all := workedProfiles()
	cases := map[string]WhitenOptions{
		"trl":                               all["trl_ppo(score@eos+1)"].whiten,
		"verl":                              all["verl"].whiten,
		"nemo":                              all["nemo"].whiten,
		"openrlhf_ddof0":                    all["openrlhf"].whiten,
		"openrlhf_masked_normalize_rowwise": {Scope: ScopeRow, EpsPlace: FloorVar, Eps: 1e-8, Remask: true},
		"oai_unmasked_ddof0":                {Scope: ScopeMinibatch, Eps: 1e-8},
	}
	require.Len(t, w.Whiten, len(cases)+2)
	for name, o := range cases {
		mask := m
		switch name {
		case "oai_unmasked_ddof0":
			mask = nil
		case "openrlhf_masked_normalize_rowwise":
		default:
			o.Remask = false // the document prints masked cells as they are
		}
		got, err := Whiten(nil, x, mask, 2, 5, o)
		require.NoError(t, err)
		require.NoError(t, off(got, flat(w.Whiten[name]), 1e-12), name)
	}
}

func TestWorkedEdges(t *testing.T) {
	w := loadWorked(t)
	means := map[string]MeanOptions{
		"trl":           {},
		"verl":          {Eps: 1e-8, Empty: EmptyZero, Outside: OutsideIgnore},
		"openrlhf":      {},
		"nemo":          {Eps: 1e-8, Empty: EmptyZero},
		"open_instruct": {Empty: EmptyZero},
	}
	want := func(v any) []float64 {
		if v == "NaN" {
			return []float64{math.NaN()}
		}
		return []float64{v.(float64)}
	}
	require.Len(t, w.Empty, len(means))
	require.Len(t, w.NaNOutside, len(means))
	for name, o := range means {
		got, err := MaskedMean([]float64{1, 2}, []bool{false, false}, o)
		require.NoError(t, err)
		require.NoError(t, off([]float64{got}, want(w.Empty[name]), 1e-12), "%s, empty", name)
		got, err = MaskedMean([]float64{1, 1, 1, 1, 1, math.NaN()}, []bool{true, true, true, true, true, false}, o)
		require.NoError(t, err)
		require.NoError(t, off([]float64{got}, want(w.NaNOutside[name]), 1e-12), "%s, NaN outside", name)
	}

	one := func(name string) ([]float64, error) {
		return Whiten(nil, []float64{1, 2}, []bool{true, false}, 1, 2, workedProfiles()[name].whiten)
	}
	_, err := one("verl")
	require.ErrorIs(t, err, ErrSingle)
	require.JSONEq(t, `"raises ValueError"`, string(w.Single["verl"]))
	got, err := Whiten(nil, []float64{1, 2}, []bool{true, false}, 1, 2, WhitenOptions{Var: VarOptions{DDof: 1}, Scope: ScopeGlobal, Eps: 1e-8})
	require.NoError(t, err)
	require.NoError(t, off(got, []float64{math.NaN(), math.NaN()}, 0))
	require.JSONEq(t, `[["NaN","NaN"]]`, string(w.Single["trl"]))
	// NeMo-RL: the residue of mean.eps times an infinite Bessel factor, whose root divides to 0.
	o := workedProfiles()["nemo"].whiten
	o.Var.Single = SingleNaN
	got, err = Whiten(nil, []float64{1, 2}, []bool{true, false}, 1, 2, o)
	require.NoError(t, err)
	require.NoError(t, off(got, []float64{0, 0}, 0))
	require.JSONEq(t, `[[0.0,-0.0]]`, string(w.Single["nemo"]))
}

func TestWorkedGroups(t *testing.T) {
	w := loadWorked(t)
	r := []float64{1, 0, .5, 2}
	std := func(ddof int, eps float64) GroupOptions {
		return GroupOptions{Scale: ScaleGroupStd, DDof: ddof, Eps: eps}
	}
	loo := GroupOptions{Center: CenterLOO, Scale: ScaleLOOStd, DDof: 1, Eps: 1e-6, ZeroStd: ZeroStdSkip}
	raw := std(1, 1e-6)
	raw.Singleton = SingletonRaw
	cases := []struct {
		name string
		r    []float64
		o    GroupOptions
		tol  float64
	}{
		{"trl_group", r, std(1, 1e-4), 1e-12},
		{"verl_grpo", r, std(1, 1e-6), 1e-12},
		{"verl_drgrpo", r, GroupOptions{}, 1e-12},
		{"verl_singleton", []float64{.7}, raw, 1e-12},
		{"verl_rloo", r, GroupOptions{Center: CenterLOO}, 1e-12},
		{"openrlhf_group_norm", r, std(1, 1e-9), 1e-12},
		{"openrlhf_rloo", r, GroupOptions{Center: CenterLOO}, 1e-12},
		{"open_instruct_standard", r, std(0, 1e-8), 1e-12},
		{"open_instruct_centered", r, GroupOptions{}, 1e-12},
		{"nemo_grpo_loo=True", r, loo, 1e-12},
		{"nemo_grpo_loo=False", r, std(1, 1e-6), 5e-8 * 2}, // a float32 step: relative 5e-8
		{"nemo_loo_onehot", []float64{0, 0, 0, 1}, GroupOptions{Center: CenterLOO, Scale: ScaleLOOStd, DDof: 1, Eps: 1e-6}, 1e-12},
	}
	require.Len(t, w.GroupAdv, len(cases))
	for _, c := range cases {
		got, err := GroupAdvantage(nil, c.r, nil, c.o)
		require.NoError(t, err, c.name)
		var want []float64
		if json.Unmarshal(w.GroupAdv[c.name], &want) != nil {
			var block struct {
				Norm   []float64 `json:"adv_norm"`
				Onehot []float64 `json:"adv_pre1519"`
			}
			require.NoError(t, json.Unmarshal(w.GroupAdv[c.name], &block), c.name)
			want = append(block.Norm, block.Onehot...)
		}
		require.NoError(t, off(got, want, c.tol), c.name)
	}
	// since NeMo-RL#1519 a deviation of 0 is not divided by
	got, err := GroupAdvantage(nil, []float64{0, 0, 0, 1}, nil, loo)
	require.NoError(t, err)
	require.Equal(t, 1.0, got[3])
}
