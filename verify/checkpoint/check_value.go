package checkpoint

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"plumbline/internal/arch"
	"plumbline/verify/check"
)

// ValueHead checks the value head that an algorithm needs.
var ValueHead = &check.Check[*Input]{
	Name: "value/head",
	Doc: `a checkpoint of PPO has its value head, weight [1, H] and bias [1]

Demanded by --needs value-head, by algorithm: ppo in the run's configuration or state.json, and by a class with a value or
token head in config.json. It is looked for as v_head.summary.*, value_head.*, score.* in safetensors, and by name in pickles.`,
	Source: "outputs of PPO with a value head; layout of a PEFT adapter; faults C20, H13a, P006, P076, P102, P186",
	Fix:    "save the head beside the policy: value_head.safetensors with v_head.summary.weight and v_head.summary.bias",
	Run: func(in *Input) ([]check.Result, error) {
		f := in.Folder
		var out []check.Result
		for _, u := range f.Units {
			if u.Kind != Adapter && u.Kind != Whole || len(u.tensors(weightsRole)) == 0 && len(u.tensors(headRole)) == 0 {
				continue
			}
			reason := in.needsHead(u)
			heads := u.tensors(headRole)
			for _, t := range u.tensors(weightsRole) {
				if headKey(t.Name) || reason != "" && (strings.HasPrefix(t.Name, "score.") || strings.Contains(t.Name, ".score.")) {
					heads = append(heads, t)
				}
			}
			pickled := u.heads()
			switch {
			case len(heads) > 0:
				out = append(out, f.headFindings(u, heads)...)
			case len(pickled) > 0:
				out = append(out, pass(f.at(u), len(pickled), "value head in a pickle: %s", pickled[0].Name))
			case reason != "" && f.critic(u):
				out = append(out, pass(f.at(u), 1, "the value model lies beside the policy"))
			case reason != "":
				out = append(out, fail(f.at(u), "C20", "the value head was not saved: save_model takes the policy only", "no value head, demanded by %s: PPO starts it anew after a resume", reason))
			}
		}
		return out, nil
	},
}

// needsHead says what demands a value head of the unit, "" if nothing does.
func (in *Input) needsHead(u *Unit) string {
	if in.needs("value-head") {
		return "--needs value-head"
	}
	run := in.Folder.Run
	if run != nil && isPPO(run.Algorithm) {
		return fmt.Sprintf("algorithm %s of the run", run.Algorithm)
	}
	if u.Manifest != nil && isPPO(u.Manifest.Trainer) {
		return "trainer " + u.Manifest.Trainer + " in MANIFEST.json"
	}
	if u.State != nil {
		if a, ok := u.State.Members["algorithm"].(string); ok && isPPO(a) {
			return fmt.Sprintf("algorithm %.32q in %s", a, base(u.State.File))
		}
	}
	if u.Config != nil {
		for _, a := range u.Config.Architectures {
			if strings.Contains(a, "ValueHead") || strings.HasSuffix(a, "ForTokenClassification") {
				return "class " + a
			}
		}
		if u.Config.Object.Has("value_head_prefix") {
			return "value_head_prefix in config.json"
		}
	}
	return ""
}

func isPPO(algorithm string) bool {
	return strings.EqualFold(algorithm, "ppo") || strings.EqualFold(algorithm, "gae")
}

func (in *Input) needs(what string) bool {
	return slices.Contains(in.Needs, what)
}

// critic reports whether the value model has a directory of its own beside that of the policy.
func (f *Folder) critic(u *Unit) bool {
	for _, o := range f.Units {
		if o == u || o.Kind == Config {
			continue
		}
		for dir := o.Dir; dir != "."; dir = path.Dir(dir) {
			if b := path.Base(dir); b == "critic" || b == "_critic" || b == "value_model" {
				return true
			}
		}
	}
	return false
}

func (f *Folder) headFindings(u *Unit, heads []*Tensor) []check.Result {
	hidden := 0
	if u.Model != nil {
		hidden = u.Model.Hidden
	} else if u.Lora != nil {
		if m := arch.Find(u.Lora.Base); m != nil && published(u.Lora.Base) {
			hidden = m.Hidden
		}
	}
	var wrong []string
	for _, t := range heads {
		s := t.Array.Shape
		switch {
		case strings.HasSuffix(t.Name, "bias"):
			if t.Array.Len() != 1 {
				wrong = append(wrong, fmt.Sprintf("%s is %s, want (1,)", t.Name, t.Array.ShapeString()))
			}
		case strings.HasSuffix(t.Name, "weight") && (len(s) != 2 || s[0] != 1 || hidden > 0 && s[1] != hidden):
			want := "(1, H)"
			if hidden > 0 {
				want = fmt.Sprintf("(1, %d)", hidden)
			}
			wrong = append(wrong, fmt.Sprintf("%s is %s, want %s", t.Name, t.Array.ShapeString(), want))
		}
	}
	if len(wrong) > 0 {
		return []check.Result{fail(f.at(u), "VALUE-SHAPE", "the head of another model, or of more than one value", "%s", several(wrong))}
	}
	return []check.Result{pass(f.at(u), len(heads), "value head: %s", heads[0].Name)}
}
