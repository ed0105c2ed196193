package checkpoint

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/pickle"
	"plumbline/verify/check"
)

// Pickle is a file that Python would unpickle. It is listed and never loaded.
type Pickle struct {
	Name    string // inside the tree
	Size    int64
	Summary *pickle.Summary // nil if it was not read
	Err     error           // why it is no pickle
}

// isPickle reports whether a file of that name is a pickle by the custom of torch.
func isPickle(base string) bool {
	for _, end := range []string{".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".distcp"} {
		if strings.HasSuffix(base, end) {
			return true
		}
	}
	return false
}

// dcpMetadata is the file that torch.distributed.checkpoint writes last: names, shapes and places of all tensors.
const dcpMetadata = ".metadata"

var dcpShard = regexp.MustCompile(`^__(\d{1,6})_(\d{1,6})\.distcp$`)

// distributed reports whether the directory holds shards of torch.distributed.checkpoint, as FSDP and accelerate save them.
func (u *Unit) distributed() bool {
	for b := range u.Entries {
		if dcpShard.MatchString(b) {
			return true
		}
	}
	return false
}

// distributedFindings judges shards of torch.distributed.checkpoint by what shows without their elements: .metadata is written when all
// ranks have written (torch@2.15 distributed/checkpoint/filesystem.py FileSystemWriter.finish), and each rank writes its own files.
func (f *Folder) distributedFindings(u *Unit) []check.Result {
	subject := f.at(u)
	ranks, last, size := map[int]bool{}, 0, int64(0)
	for b, e := range u.Entries {
		if m := dcpShard.FindStringSubmatch(b); m != nil {
			n, _ := strconv.Atoi(m[1])
			ranks[n] = true
			last = max(last, n)
			size += e.Size
		}
	}
	if !u.has(dcpMetadata) {
		return []check.Result{fail(subject, "DCP-METADATA", "the save did not end: .metadata is written last", "shards of %s, and no .metadata: torch.distributed.checkpoint cannot load them", plural(len(ranks), "rank"))}
	}
	names := ""
	for _, p := range u.Pickles {
		if base(p.Name) == dcpMetadata && p.Summary != nil && len(p.Summary.Keys) > 0 {
			names = fmt.Sprintf(", with %s such as %s", plural(len(p.Summary.Keys), "key"), several(p.Summary.Keys[:min(3, len(p.Summary.Keys))]))
		}
	}
	r := undetermined(subject, "DCP", "shards of torch.distributed.checkpoint", "%s of %s in the shards of torch.distributed.checkpoint%s: they are pickles, listed and not read", megabytes(size), plural(len(ranks), "rank"), names)
	r.Fix = "convert it where you trust it: python -m torch.distributed.checkpoint.format_utils dcp_to_torch " + subject + " pytorch_model.bin, then save as safetensors"
	if len(ranks) <= last { // a rank that holds copies alone may write nothing
		return []check.Result{r, warn(subject, "RANK-MISSING", "a rank did not save, or its disk was not copied", "files of %d of %d ranks of torch.distributed.checkpoint", len(ranks), last+1)}
	}
	return []check.Result{r}
}

// weightPickle reports whether the directory holds weights as a pickle.
func (u *Unit) weightPickle() bool { return len(weightPickles(u)) > 0 }

// weightPickles returns the pickles that hold the weights of the unit: not the one that TRL writes beside an adapter for
// the value head.
func weightPickles(u *Unit) []string {
	var list []string
	for _, p := range u.Pickles {
		b := path.Base(p.Name)
		if strings.HasPrefix(b, "adapter_model") || strings.HasPrefix(b, "pytorch_model") && !p.onlyHead() {
			list = append(list, b)
		}
	}
	return list
}

// onlyHead reports whether the pickle holds a value head and nothing else.
func (p *Pickle) onlyHead() bool {
	if p.Summary == nil || len(p.Summary.Tensors) == 0 {
		return false
	}
	return !slices.ContainsFunc(p.Summary.Tensors, func(t pickle.Tensor) bool { return !headKey(t.Name) })
}

// heads returns the tensors of a value head in the pickles of the unit.
func (u *Unit) heads() []pickle.Tensor {
	var list []pickle.Tensor
	for _, p := range u.Pickles {
		if p.Summary == nil {
			continue
		}
		for _, t := range p.Summary.Tensors {
			if headKey(t.Name) {
				list = append(list, t)
			}
		}
	}
	return list
}

// torchNames begin the names of files that torch, transformers, verl and DeepSpeed pickle; others may end in .bin as well.
var torchNames = []string{"adapter_model", "pytorch_model", "training_args", "optimizer", "optim_", "scheduler", "rng_state", "model_world_size", "extra_state", "mp_rank", "zero_pp_rank",
	"data", "value_head", "v_head", "non_lora_trainables", "bf16_zero"}

func (f *Folder) pickle(u *Unit, base string) (*Pickle, error) {
	p := &Pickle{Name: path.Join(u.Dir, base), Size: u.Entries[base].Size}
	if p.Size == 0 || strings.HasSuffix(base, ".distcp") { // shards of torch.distributed.checkpoint are many pickles in a row
		return p, nil
	}
	s, err := pickle.ScanAt(&reader{tree: f.Tree, name: p.Name, pool: f.pool}, p.Size, f.shown(p.Name))
	if err == nil {
		p.Summary = s
		for _, g := range p.dangerous() {
			f.Hostile = append(f.Hostile, format.Malformed(f.shown(p.Name), "", "refused: loading this pickle would call %s", g))
			break
		}
		return p, nil
	}
	if !format.IsMalformed(err) {
		return nil, err
	}
	p.Err = err
	ours := slices.ContainsFunc(torchNames, func(n string) bool { return strings.HasPrefix(base, n) })
	if ours || !strings.HasSuffix(base, ".bin") {
		return p, f.refuse(err)
	}
	return p, nil
}

// dangerous returns the names that loading the pickle would import and that can run commands. A pickle of training
// arguments made by Python 3.11 calls getattr for every enumeration in it.
func (p *Pickle) dangerous() []string {
	var list []string
	for _, g := range p.Summary.Globals {
		if g.Risk() != pickle.Executes || strings.HasPrefix(path.Base(p.Name), "training_args") && g.String() == "builtins.getattr" {
			continue
		}
		if g.Module == "numpy.random._pickle" && strings.HasSuffix(g.Name, "_ctor") {
			continue // the state of a generator of NumPy, in spite of the underscores
		}
		list = append(list, g.String())
	}
	return list
}

// Pickles lists what pickles would do.
var Pickles = &check.Check[*Input]{
	Name: "pickle/globals",
	Doc: `no pickle in the folder imports what can run commands

Loading a pickle calls the functions that it names. Each is listed by its opcodes and the names that it imports and calls,
never loaded. Names that can run commands fail, and the exit code is 4; those of libraries are listed; what
torch.load(weights_only=True) allows passes. It is no proof of innocence.`,
	Source: "rules of every reader, layout of a PEFT adapter",
	Fix:    "do not load the file; ask its author for safetensors",
	Run: func(in *Input) ([]check.Result, error) {
		f := in.Folder
		var out []check.Result
		for _, u := range f.Units {
			for _, p := range u.Pickles {
				subject := f.shown(p.Name)
				if p.Summary == nil {
					if p.Err != nil {
						out = append(out, note(subject, "is no pickle: %v", p.Err))
					}
					continue
				}
				out = append(out, p.findings(subject))
			}
		}
		return out, nil
	},
}

func (p *Pickle) findings(subject string) check.Result {
	s := p.Summary
	var details, opcodes, libraries []string
	for _, o := range s.Opcodes {
		opcodes = append(opcodes, fmt.Sprintf("%s × %d", o.Name, o.Count))
	}
	details = append(details, "opcodes "+strings.Join(opcodes, ", "))
	for _, g := range s.Globals {
		if len(details) > 50 && g.Risk() != pickle.Executes {
			continue
		}
		if len(details) > 100 {
			break
		}
		details = append(details, fmt.Sprintf("imports %s at byte %d (%s), called %s: %s", g, g.Offset, g.Opcode, plural(g.Calls, "time"), g.Risk()))
	}
	for _, g := range s.Globals {
		if g.Risk() == pickle.Imports {
			libraries = append(libraries, g.String())
		}
	}
	what := fmt.Sprintf("%s, protocol %d, %s, %s", s.Container, s.Protocol, plural(len(s.Globals), "import"), plural(len(s.Tensors), "tensor"))
	var r check.Result
	switch bad := p.dangerous(); {
	case len(bad) > 0:
		r = fail(subject, "PICKLE-CODE", "a pickle that runs code when it is loaded", "would import %s (%s)", several(bad), what)
		r.Where = fmt.Sprintf("byte %d", s.Globals[slices.IndexFunc(s.Globals, func(g pickle.Global) bool { return g.String() == bad[0] })].Offset)
	case len(s.Problems) > 0:
		r = fail(subject, "PICKLE-TENSORS", "cut off, or put together by hand", "%s: %s", what, several(s.Problems))
	case len(libraries) > 0:
		r = note(subject, "imports the code of libraries: %s (%s)", several(libraries), what)
	default:
		r = pass(subject, len(s.Globals), "rebuilds tensors only: %s", what)
	}
	r.Details = details
	return r
}
