package checkpoint

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Family returns the layout of the folder: plumbline run, verl, openrlhf, trl, transformers trainer, peft, hugging face; ""
// if it is none of these.
func (f *Folder) Family() string {
	has := func(test func(u *Unit) bool) bool { return slices.ContainsFunc(f.Units, test) }
	in := func(u *Unit, names ...string) bool { return slices.Contains(names, path.Base(u.Dir)) }
	switch {
	case f.Run != nil:
		return "plumbline run"
	case has(func(u *Unit) bool {
		return u.hasLike("model_world_size_", "optim_world_size_") || u.has("fsdp_config.json") || in(u, "lora_adapter") && strings.Contains(f.shown(u.Dir), "actor") || in(u, "huggingface")
	}):
		return "verl"
	case has(func(u *Unit) bool { return in(u, "_actor", "_critic") || strings.Contains(u.Dir, "_actor/") }) || f.valueHeadConfig():
		return "openrlhf"
	case has(func(u *Unit) bool {
		return u.hasLike("pytorch_model.bin") && u.Kind == Adapter || len(u.tensors(headRole)) > 0 && u.Kind == Whole
	}):
		return "trl"
	case has(func(u *Unit) bool { return u.has("trainer_state.json") || u.has("training_args.bin") }):
		return "transformers trainer"
	case len(f.of(Adapter)) > 0:
		return "peft"
	case len(f.of(Whole)) > 0:
		return "hugging face"
	}
	return ""
}

// valueHeadConfig reports whether a configuration names the value head as OpenRLHF's critics and reward models do.
func (f *Folder) valueHeadConfig() bool {
	return slices.ContainsFunc(f.Units, func(u *Unit) bool { return u.Config != nil && u.Config.Object.Has("value_head_prefix") })
}

// Describe says in one line what the folder holds.
func (f *Folder) Describe() string {
	counts := map[Kind]int{}
	for _, u := range f.Units {
		counts[u.Kind]++
	}
	var parts []string
	for _, k := range []Kind{Adapter, Whole, Config} {
		if counts[k] > 0 {
			parts = append(parts, fmt.Sprintf("%d × %s", counts[k], k))
		}
	}
	if len(f.of(Adapter))+len(f.of(Whole)) == 1 && counts[Config] == 0 {
		for _, u := range f.Units {
			if u.Kind == Adapter || u.Kind == Whole {
				parts = []string{u.Describe()}
			}
		}
	}
	family := cmp.Or(f.Family(), "layout not known")
	return family + ": " + strings.Join(parts, ", ")
}

// Describe says in one line what the unit holds.
func (u *Unit) Describe() string {
	list := u.tensors(weightsRole)
	n := int64(0)
	for _, t := range list {
		n += int64(t.Array.Len())
	}
	text := fmt.Sprintf("%s, %s, %s parameters, %s", u.Kind, plural(len(list), "tensor"), thousands(n), megabytes(u.size()))
	if u.Kind == Adapter && u.Lora != nil {
		text += fmt.Sprintf(", r %d, α %g, scaling %.4g", u.Lora.R, u.Lora.Alpha, u.Lora.Scaling(""))
	}
	if u.Kind == Whole && u.Config != nil && u.Config.Type != "" {
		text += ", " + u.Config.Type
	}
	return text
}

// Lines are printed above the findings: what each directory holds.
func (in *Input) Lines() []string {
	var lines []string
	f := in.Folder
	if len(f.Units) > 0 {
		lines = append(lines, "layout: "+f.Describe())
	}
	if len(f.of(Adapter))+len(f.of(Whole)) == 1 && len(f.Units) == 1 {
		return lines // Describe has said it
	}
	const most = 20
	listed := 0
	for _, u := range f.Units {
		if u.Kind == State && len(u.Containers) == 0 {
			continue
		}
		if listed++; listed > most {
			continue
		}
		lines = append(lines, u.Dir+": "+u.Describe())
	}
	if listed > most {
		lines = append(lines, fmt.Sprintf("and %d directories more", listed-most))
	}
	return lines
}
