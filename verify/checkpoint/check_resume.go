package checkpoint

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"plumbline/verify/check"
)

// TokenizerFiles checks the tokenizer beside a model.
var TokenizerFiles = &check.Check[*Input]{
	Name: "tokenizer/files",
	Doc: `a tokenizer lies beside a whole model, and its ids fit the embedding

In a run of system C, and with --needs tokenizer, it must. An id at or above the rows of the embedding reads outside of it.`,
	Source: "outputs of PPO with a value head; layout of a Hugging Face folder, tokenizer.json; fault C20",
	Fix:    "tokenizer.save_pretrained(dir) with every checkpoint; resize the embedding to the tokenizer",
	Run: func(in *Input) ([]check.Result, error) {
		f := in.Folder
		var out []check.Result
		units := slices.Clone(f.Units)
		if in.Merged != nil {
			units = append(units, in.Merged.Units...)
		}
		for i, u := range units {
			if f = in.Folder; i >= len(f.Units) {
				f = in.Merged
			}
			if u.Kind != Whole && u.Kind != Adapter || len(u.tensors(weightsRole)) == 0 {
				continue
			}
			t := f.tokenizerOf(u)
			run := f.Run != nil && (u == f.Run.Final || slices.Contains(f.Run.StepsAt, u))
			switch {
			case t == nil && (run || in.needs("tokenizer")):
				out = append(out, fail(f.at(u), "TOKENIZER-MISSING", "the save leaves out the tokenizer", "no tokenizer (one of %s)", several(tokenizerFiles)))
			case t == nil && u.Kind == Whole:
				out = append(out, warn(f.at(u), "TOKENIZER-MISSING", "the save leaves out the tokenizer", "no tokenizer: the folder cannot be served by itself"))
			case t == nil || t.Size == 0:
			default:
				rows := embeddingRows(u)
				if m, _ := in.baseModel(u); rows == 0 && m != nil && u.Kind == Adapter {
					rows = m.Vocab
				}
				switch {
				case rows > 0 && t.Size > rows:
					out = append(out, fail(f.at(u), "VOCABULARY", "tokens were added, and the embedding was not resized", "the tokenizer has ids up to %d, the embedding has %d rows", t.Size-1, rows))
				case rows > 0 && t.Added > rows && len(t.without(rows)) > 0:
					out = append(out, fail(f.at(u), "ADDED-TOKEN", "an added token has no row: embedding it is an index error", "the embedding has %d rows, and of the tokens that were added %s", rows, several(t.without(rows))))
				case rows > 0 && t.Added > rows:
					out = append(out, warn(f.at(u), "ADDED-TOKEN", "the class of the tokenizer added unk_token, which has no row and no use", "added tokens have ids up to %d, the embedding has %d rows", t.Added-1, rows))
				case rows > 0:
					out = append(out, pass(f.at(u), t.Size, "%d ids for %d rows", t.Added, rows))
				}
			}
		}
		return out, nil
	},
}

// tokenizerOf returns the tokenizer of a unit: in its directory, or for system C in the folder above.
func (f *Folder) tokenizerOf(u *Unit) *Tokenizer {
	if u.Tokenizer != nil {
		return u.Tokenizer
	}
	for _, o := range f.Units {
		if o.Tokenizer != nil && (o.Dir == path.Join(u.Dir, "tokenizer") || path.Dir(o.Dir) == path.Dir(u.Dir) && path.Base(o.Dir) == "huggingface") {
			return o.Tokenizer
		}
	}
	return nil
}

// embeddingRows returns the rows of the input embedding of a whole model, 0 if it is not there.
func embeddingRows(u *Unit) int {
	for _, t := range u.tensors(weightsRole) {
		for _, e := range tables2 {
			if endsWith(t.Name, e+".weight") && len(t.Array.Shape) == 2 && t.Array.DType.Float() {
				return t.Array.Shape[0]
			}
		}
	}
	return 0
}

// OptimizerState checks the state of the optimiser.
var OptimizerState = &check.Check[*Input]{
	Name: "resume/optimizer",
	Doc: `a checkpoint to resume from has the moments of every parameter that is trained

They are looked for in optimizer.pt, optim*.pt and optimizer.safetensors, in pickles by the shapes that the program declares.
Moments for no parameter mean that nothing is trained after the resume; for fewer numbers than the adapter has, that part of
it is not in the optimiser.`,
	Source: "V22, V29; resume; faults D14, P042, P124, P141",
	Fix:    "save optimizer.state_dict() with the weights; load the adapter with is_trainable=True before making the optimiser",
	Run: func(in *Input) ([]check.Result, error) {
		return each(in.Folder.Units, sure(func(u *Unit) []check.Result { return in.optimizerFindings(in.Folder, u) }))
	},
}

// resumable says why a unit should hold the state of a trainer, and whether that is certain.
func (in *Input) resumable(u *Unit) (reason string, certain bool) {
	f := in.Folder
	switch {
	case u.Kind != Adapter && u.Kind != Whole:
		return "", false
	case f.Run != nil && slices.Contains(f.Run.StepsAt, u):
		return "a step of a run", true
	case u.has("state.json") && u.State != nil:
		return "state.json", true
	case u.has("trainer_state.json") && u.State != nil:
		return "trainer_state.json", false
	}
	return "", false
}

// moment is a tensor of the state of an optimiser.
type moment struct {
	name  string
	n     int64
	shape []int64
}

// stateParts are the names of what an optimiser keeps once for each parameter: Adam and its kin, 8-bit optimisers, plumbline, SGD
// with momentum, Adagrad, RMSprop, Adadelta, Adafactor (whose second moment of a matrix is a row and a column: the row stands for it).
var stateParts = []string{"exp_avg", "state1", "m", "momentum_buffer", "sum", "square_avg", "exp_avg_sq_row", "exp_inf"}

// bareParts stand for a parameter where none of stateParts does: Adafactor of a vector.
const bareParts = "exp_avg_sq"

// moments returns the first moments, or what an 8-bit optimiser keeps for them, and whether there is a state at all.
func (u *Unit) moments() (list []moment, there bool) {
	first := func(name string) bool {
		for part := range strings.SplitSeq(name, ".") {
			if slices.Contains(stateParts, part) {
				return true
			}
		}
		return false
	}
	byParameter := map[string]bool{}
	add := func(name string, n int64, shape []int64, second bool) {
		i := strings.LastIndexByte(name, '.')
		if part := name[i+1:]; first(name) && !second || second && part == bareParts && !byParameter[name[:max(i, 0)]] {
			if byParameter[name[:max(i, 0)]] && i >= 0 {
				return // momentum_buffer beside square_avg: one parameter
			}
			byParameter[name[:max(i, 0)]] = i >= 0
			list = append(list, moment{name, n, shape})
		}
	}
	for _, second := range []bool{false, true} {
		for _, t := range u.tensors(optimizerRole) {
			there = true
			if part, _, _ := strings.Cut(t.Name, "."); part == "m" || part == "v" { // plumbline's own: m.NAME
				if part == "m" && !second {
					list = append(list, moment{t.Name, int64(t.Array.Len()), wide64(t.Array.Shape)})
				}
				continue
			}
			add(t.Name, int64(t.Array.Len()), wide64(t.Array.Shape), second)
		}
	}
	for _, p := range u.Pickles {
		b := path.Base(p.Name)
		if !strings.HasPrefix(b, "optim") {
			continue
		}
		there = true
		if p.Summary == nil {
			continue
		}
		for _, second := range []bool{false, true} {
			for i := range p.Summary.Tensors {
				t := &p.Summary.Tensors[i]
				add(t.Name, t.Len(), t.Shape, second)
			}
		}
	}
	return list, there || u.hasLike("optimizer", "optim_") || u.Manifest != nil && hasKeyLike(u.Manifest.Files, "optim")
}

func wide64(shape []int) []int64 {
	out := make([]int64, len(shape))
	for i, n := range shape {
		out[i] = int64(n)
	}
	return out
}

func hasKeyLike[V any](m map[string]V, part string) bool {
	for k := range m {
		if strings.Contains(k, part) {
			return true
		}
	}
	return false
}

func (in *Input) optimizerFindings(f *Folder, u *Unit) []check.Result {
	reason, certain := in.resumable(u)
	list, there := u.moments()
	if in.needs("optimizer") && (u.Kind == Adapter || u.Kind == Whole) {
		reason, certain = "--needs optimizer", true
	}
	subject := f.at(u)
	if !there {
		switch {
		case reason == "" || f.optimizerBeside(u):
			return nil
		case certain:
			return []check.Result{fail(subject, "P124", "the state of the optimiser was not saved", "no state of the optimiser, demanded by %s: Adam starts anew after a resume", reason)}
		}
		return []check.Result{warn(subject, "P124", "saved with save_only_model", "no state of the optimiser beside %s: Adam starts anew after a resume", reason)}
	}
	if u.Kind != Adapter && u.Kind != Whole || !u.readable() {
		return nil
	}
	if len(list) == 0 && u.stateless() {
		return []check.Result{note(subject, "SGD without momentum keeps no state: nothing of it can be lost")}
	}
	if len(list) == 0 {
		return []check.Result{fail(subject, "P042", "the optimiser held no parameters: is_trainable=False, or made before the adapter", "the state of the optimiser holds no moments")}
	}
	var have, want int64
	for _, m := range list {
		have += max(m.n, 0)
	}
	n := 0
	shapes := map[string]int{} // of the parameters, less those of the moments
	for _, t := range u.tensors(weightsRole) {
		if u.Kind == Adapter || t.Array.DType.Float() {
			want += int64(t.Array.Len())
			shapes[fmt.Sprint(wide64(t.Array.Shape))]++
			n++
		}
	}
	for _, t := range u.tensors(headRole) {
		want += int64(t.Array.Len())
		shapes[fmt.Sprint(wide64(t.Array.Shape))]++
		n++
	}
	for _, t := range u.heads() {
		want += max(t.Len(), 0)
		shapes[fmt.Sprint(t.Shape)]++
		n++
	}
	flat := false // parameters in one row, as FSDP and ZeRO hold them
	for _, m := range list {
		flat = flat || len(m.shape) < 2 && shapes[fmt.Sprint(m.shape)] == 0
		shapes[fmt.Sprint(m.shape)]--
	}
	if slices.ContainsFunc(list, func(m moment) bool { return strings.HasSuffix(m.name, "exp_avg_sq_row") }) {
		switch { // factored: as many as parameters, not as many numbers
		case u.Kind == Adapter && len(list) < n:
			return []check.Result{fail(subject, "D14", "part of what is saved is in no group of the optimiser", "factored moments of %s, the adapter has %s", plural(len(list), "tensor"), plural(n, "tensor"))}
		case u.Kind == Adapter && len(list) > n:
			return []check.Result{warn(subject, "OPT-EXTRA", "the state of another adapter, or parameters that are not saved", "factored moments of %s, the adapter has %s", plural(len(list), "tensor"), plural(n, "tensor"))}
		}
		return []check.Result{pass(subject, len(list), "factored moments of %s", plural(len(list), "tensor"))}
	}
	if u.Kind == Adapter && have < want {
		return []check.Result{fail(subject, "D14", "part of what is saved is in no group of the optimiser", "moments of %s numbers in %s, the adapter has %s in %s", thousands(have), plural(len(list), "tensor"), thousands(want), plural(n, "tensor"))}
	}
	if u.Kind == Adapter && have > want {
		return []check.Result{warn(subject, "OPT-EXTRA", "the state of another adapter, or parameters that are not saved", "moments of %s numbers, the adapter has %s", thousands(have), thousands(want))}
	}
	if u.Kind == Adapter && !flat && len(list) == n {
		var other []string
		for shape, k := range shapes {
			if k < 0 {
				other = append(other, fmt.Sprintf("%d of %s", -k, shape))
			}
		}
		if slices.Sort(other); len(other) > 0 {
			return []check.Result{fail(subject, "OPT-SHAPE", "the state of another adapter", "moments of shapes that no tensor of the adapter has: %s", several(other))}
		}
	}
	if found := in.orderFindings(u, list); len(found) > 0 {
		return found
	}
	return []check.Result{pass(subject, len(list), "moments of %s numbers in %s", thousands(have), plural(len(list), "tensor"))}
}

// stateless reports whether the optimiser is SGD without momentum, by the settings of its groups.
func (u *Unit) stateless() bool {
	for _, p := range u.Pickles {
		if p.Summary == nil || !strings.HasPrefix(path.Base(p.Name), "optim") || !slices.Contains(p.Summary.Keys, "nesterov") {
			continue
		}
		for _, n := range p.Summary.Numbers {
			if n.Name == "param_groups.0.momentum" && n.Value == 0 {
				return true
			}
		}
	}
	return false
}

// readable reports whether every file of an optimiser could be listed.
func (u *Unit) readable() bool {
	return !slices.ContainsFunc(u.Pickles, func(p *Pickle) bool { return strings.HasPrefix(path.Base(p.Name), "optim") && p.Summary == nil })
}

// optimizerBeside reports whether the state lies in a directory below, as DeepSpeed and FSDP have it.
func (f *Folder) optimizerBeside(u *Unit) bool {
	return slices.ContainsFunc(f.Entries, func(e Entry) bool {
		rest, ok := strings.CutPrefix(e.Name, u.Dir+"/")
		if u.Dir == "." {
			rest, ok = e.Name, true
		}
		return ok && strings.Contains(rest, "/") && strings.Contains(rest, "optim") && !strings.Contains(e.Name, "step_")
	})
}

// TrainerState checks the rest of what a resume needs.
var TrainerState = &check.Check[*Input]{
	Name: "resume/state",
	Doc: `a checkpoint to resume from has its step, the state of every random generator, the schedule and the position in the data

The step in the state is the one in the name of the folder, and transformers' trainer_state.json, which has it, is there. Shards
per rank are complete.`,
	Source: "V29; resume; outputs of PPO with a value head; faults P010, P072, P135, P204; transformers#17032, OpenRLHF#1103",
	Fix:    "save the random state of every rank, the schedule and the data loader with the weights",
	Run: func(in *Input) ([]check.Result, error) {
		return each(in.Folder.Units, sure(func(u *Unit) []check.Result {
			return append(in.stateFindings(in.Folder, u), rankFindings(in.Folder, u)...)
		}))
	},
}

func (in *Input) stateFindings(f *Folder, u *Unit) (out []check.Result) {
	subject := f.at(u)
	reason, certain := in.resumable(u)
	byName, ok := f.stepOf(u)
	if u.State != nil && ok {
		if n, has := stepIn(u); has && n != byName {
			out = append(out, fail(subject, "STEP-MISMATCH", "the state of another step: saved before or after the counter moved", "the folder is of step %d, %s says %d", byName, base(u.State.File), n))
		}
	}
	if u.State != nil && u.State.Has("max_steps") {
		most := u.State.Int("max_steps", 0, -largest, largest)
		if n, has := stepIn(u); has && most > 0 && n > most {
			out = append(out, fail(subject, "P010", "the step is counted in the inner loop: the schedule runs ahead", "global_step is %d, max_steps %d", n, most))
		}
	}
	out = append(out, u.aheadFindings(subject)...)
	missing := func(there bool, need, id, title, what string) {
		demanded := certain || in.needs(need) && (u.Kind == Adapter || u.Kind == Whole)
		switch {
		case there || reason == "" && !demanded:
		case demanded:
			out = append(out, fail(subject, id, title, "no %s", what))
		default:
			out = append(out, warn(subject, id, title, "no %s beside %s", what, reason))
		}
	}
	has := func(keys ...string) bool {
		return u.State != nil && slices.ContainsFunc(keys, func(k string) bool { return u.State.Members[k] != nil })
	}
	if u.State == nil && ok && u.has("optimizer.pt") && u.has("scheduler.pt") && !f.refusedIn(u) {
		out = append(out, fail(subject, "STATE-MISSING", "transformers' Trainer resumes at step 0 with the optimiser of later", "trainer_state.json is missing beside optimizer.pt and scheduler.pt of step %d", byName))
	}
	if u.Kind == Adapter || u.Kind == Whole {
		missing(u.hasLike("rng") || has("rng", "rng_state", "random_state"), "rng", "RNG-MISSING", "random generators start anew: sampling repeats itself after a resume", "random state")
		missing(u.hasLike("scheduler", "lr_scheduler") || has("scheduler", "lr_scheduler", "schedule"), "scheduler", "SCHEDULER-MISSING", "the learning rate starts anew: warm-up runs again", "state of the schedule")
		if certain && reason != "" {
			missing(u.hasLike("data.", "data_state", "dataloader", "sampler") || has("data_position", "data_cursor", "data", "cursor", "epoch"), "data", "P072", "the data starts at the first example again", "position in the data")
		}
	}
	if len(out) == 0 && reason != "" {
		out = append(out, pass(subject, 4, "step, random state and schedule are there"))
	}
	return out
}

var rankName = regexp.MustCompile(`^(.+)_world_size_(\d{1,6})_rank_(\d{1,6})\.pt$`)

// rankFindings checks that the shards of every rank are there.
func rankFindings(f *Folder, u *Unit) (out []check.Result) {
	type group struct {
		kind string
		size int
	}
	have := map[group]map[int]bool{}
	for b := range u.Entries {
		m := rankName.FindStringSubmatch(b)
		if m == nil {
			continue
		}
		size, _ := strconv.Atoi(m[2])
		rank, _ := strconv.Atoi(m[3])
		g := group{m[1], size}
		if have[g] == nil {
			have[g] = map[int]bool{}
		}
		have[g][rank] = true
	}
	groups := slices.SortedFunc(maps.Keys(have), func(a, b group) int { return strings.Compare(a.kind+fmt.Sprint(a.size), b.kind+fmt.Sprint(b.size)) })
	n := 0
	for _, g := range groups {
		if n += len(have[g]); len(have[g]) < g.size {
			out = append(out, fail(f.at(u), "RANK-MISSING", "a rank did not save, or its disk was not copied", "%s: %d of %d ranks", g.kind, len(have[g]), g.size))
		}
	}
	for _, g := range groups {
		for _, h := range groups {
			if g.kind == "model" && h.kind == "optim" && g.size != h.size {
				out = append(out, fail(f.at(u), "RANK-MISSING", "shards of two saves", "model of %d ranks, optimiser of %d", g.size, h.size))
			}
		}
	}
	if len(out) == 0 && n > 0 {
		out = append(out, pass(f.at(u), n, "shards of all ranks"))
	}
	return out
}
