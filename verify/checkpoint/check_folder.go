package checkpoint

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"plumbline/internal/format/hf"
	"plumbline/internal/format/pickle"
	"plumbline/verify/check"
)

// Files checks that every file that matters could be read.
var Files = &check.Check[*Input]{
	Name: "folder/files",
	Doc: `every configuration, index and file of tensors in the folder can be read and lies inside it

Headers of .safetensors files are checked as the reference implementation does, and more strictly; JSON is read by a strict
walk. A symbolic link that leads out of the folder, a FIFO or a device is refused and never opened. The exit code is 4.`,
	Source: "rules of every reader, safetensors, layout of a Hugging Face folder, layout of a PEFT adapter, hostile files",
	Fix:    "save the file again; copy what links point to into the folder (cp -rL)",
	Run: func(in *Input) ([]check.Result, error) {
		var out []check.Result
		read := 0
		for _, f := range in.folders() {
			for _, err := range f.Refused {
				id, title := refusal(err.Error())
				out = append(out, fail(f.Tree.Path(), id, title, "%v", err))
			}
			for _, u := range f.Units {
				read += len(u.Containers)
				for _, there := range []bool{u.Config != nil, u.Lora != nil, u.Index != nil, u.State != nil, u.Manifest != nil, u.Tokenizer != nil} {
					if there {
						read++
					}
				}
			}
		}
		if len(out) == 0 && read > 0 {
			out = append(out, pass(in.Folder.Tree.Path(), read, "%s read", plural(read, "file")))
		}
		return out, nil
	},
}

// folders returns every folder of the input.
func (in *Input) folders() []*Folder {
	var list []*Folder
	for _, f := range []*Folder{in.Folder, in.Base, in.Init, in.Merged, in.Against} {
		if f != nil {
			list = append(list, f)
		}
	}
	return list
}

// Refused returns the first file that was refused, or that must not be loaded; nil if there is none.
func (in *Input) Refused() error {
	for _, f := range in.folders() {
		if list := append(slices.Clone(f.Refused), f.Hostile...); len(list) > 0 {
			return list[0]
		}
	}
	return nil
}

// refusal names the fault behind the message about a file that was refused.
func refusal(msg string) (id, title string) {
	for _, r := range []struct{ part, id, title string }{
		{"a shard is a plain file name", "INDEX-ESCAPE", "the index names a file outside the folder"},
		{"is mapped to", "INDEX-TENSOR", "the index and the shards contradict each other: shards of two saves"},
		{"lies in two shards", "TENSOR-TWICE", "a tensor in two shards: shards of two saves, or of two ranks"},
		{"leads out", "LINK-OUT", "a link leads out of the folder"},
		{"escapes from parent", "LINK-OUT", "a link leads out of the folder"},
		{"leads back to itself", "LINK-OUT", "a link leads back to itself"},
		{"leads nowhere", "LINK-OUT", "a link leads nowhere: the target was not copied"},
		{"link to a folder", "LINK-OUT", "a link to a folder"},
		{"want a regular file", "SPECIAL-FILE", "no regular file"},
		{".safetensors", "BROKEN-SAFETENSORS", "cut off while it was written or copied, or no safetensors file"},
		{"tokenizer", "BROKEN-JSON", "a broken tokenizer"},
		{".json", "BROKEN-JSON", "a broken configuration or index"},
	} {
		if strings.Contains(msg, r.part) && (r.id != "BROKEN-SAFETENSORS" || !strings.Contains(msg, ".json")) {
			return r.id, r.title
		}
	}
	return "BROKEN-FILE", "a file that is malformed"
}

// Contents checks that the folder is a checkpoint at all.
var Contents = &check.Check[*Input]{
	Name: "folder/contents",
	Doc: `the folder holds weights

It says which framework's layout was found and what each directory holds. A folder without weights, or with a configuration
alone, fails. Weights that are only in pickles or in shards of torch.distributed.checkpoint are undetermined: they are listed, and
reading them would run code of their author.`,
	Source: "layout of a Hugging Face folder, layout of a PEFT adapter; faults C20, P076, P140, P144; TRL#4416",
	Fix:    "name the folder of one checkpoint; save with safe_serialization=True",
	Run: func(in *Input) ([]check.Result, error) {
		f := in.Folder
		shown := f.Tree.Path()
		if len(f.Entries) == 0 {
			return []check.Result{fail(shown, "EMPTY-FOLDER", "an empty folder", "the folder holds no files: nothing was saved, or it is another one")}, nil
		}
		var out []check.Result
		read := false
		for _, u := range f.Units {
			weights := len(u.tensors(weightsRole)) > 0
			named := slices.ContainsFunc(u.Containers, func(c *Container) bool { return c.Role == weightsRole })
			switch {
			case weights:
				read = true
			case named && u.Kind == Adapter:
				read = true
				out = append(out, fail(f.at(u), "EMPTY-ADAPTER", "an adapter without tensors: gathered on no rank (ZeRO-3), or saved from a model without adapter",
					"%s holds no tensors (%s)", base(u.Containers[0].Name), megabytes(u.Containers[0].Size)))
			case u.Kind == Adapter && !u.weightPickle() && !f.refusedIn(u):
				out = append(out, fail(f.at(u), "CONFIG-ONLY", "a configuration without weights", "adapter_config.json is there, adapter_model.safetensors is not"))
			case (u.Kind == Adapter || u.Kind == Whole) && u.weightPickle():
				list := weightPickles(u)
				r := undetermined(f.at(u), "PICKLE-ONLY", "weights as a pickle only", "weights are only in %s, which is a pickle: loading it runs code of its author, so it is listed and not read", several(list))
				to := "model.safetensors"
				if u.Kind == Adapter {
					to = "adapter_model.safetensors"
				}
				r.Fix = "convert it where you trust it: " + hf.Convert(path.Join(f.at(u), to), shownAll(f, u, list)...)
				out = append(out, r)
			case u.distributed():
				out = append(out, f.distributedFindings(u)...)
			case u.Kind == Config && !f.shardsBeside(u) && !f.refusedIn(u):
				if weightless.MatchString(path.Base(f.at(u))) {
					r := undetermined(f.at(u), "CONFIG-ONLY", "a module without weights of its own", "this is how sentence-transformers names a module that pools or normalises: it has a configuration and no weights")
					r.Fix = "name the folder above it, which has modules.json and the weights"
					out = append(out, r)
				} else if len(f.of(Adapter))+len(f.of(Whole)) == 0 {
					out = append(out, fail(f.at(u), "CONFIG-ONLY", "a configuration without weights", "config.json is there, weights are not"))
				}
			}
		}
		for _, e := range f.Entries {
			dir := path.Dir(e.Name)
			if path.Base(e.Name) == "lora_train_meta.json" && !slices.ContainsFunc(f.of(Adapter), func(u *Unit) bool { return path.Dir(u.Dir) == dir }) && !f.shardsHold(dir, ".lora_") {
				out = append(out, fail(f.shown(dir), "P076", "the save hook does not know the adapter", "lora_train_meta.json says that LoRA is trained, and there is no lora_adapter"))
			}
		}
		if len(out) == 0 && len(f.Units) == 0 && len(f.Refused) == 0 {
			var names []string
			for _, e := range f.Entries {
				names = append(names, e.Name)
			}
			out = append(out, fail(shown, "OTHER-KIND", "a folder of another kind", "no weights and no configuration among %s (%s)", plural(len(names), "file"), several(names)))
		}
		if len(out) == 0 && !read && len(f.Refused) == 0 {
			switch pickles := f.pickles(); {
			case f.shardsHold("", "weight"):
				r := undetermined(shown, "PICKLE-ONLY", "weights as pickles only", "the weights are only in %s (%s), which are listed and not read: loading them runs code of their author", plural(len(pickles), "pickle"), several(pickles))
				r.Fix = "convert them where you trust them, with the merger of the framework that wrote them (verl: python -m verl.model_merger merge)"
				out = append(out, r)
			case len(pickles) > 0:
				out = append(out, fail(shown, "PICKLE-ONLY", "weights as pickles only", "all there is are %s (%s): they are listed and not read", plural(len(pickles), "pickle"), several(pickles)))
			default:
				out = append(out, fail(shown, "OTHER-KIND", "a folder of another kind", "no tensors in %s", plural(len(f.Entries), "file")))
			}
		}
		if len(out) == 0 && read {
			out = append(out, pass(shown, len(f.Entries), "%s", f.Describe()))
		}
		return out, nil
	},
}

// refusedIn reports whether a file of that directory was refused: what is missing then is said there.
func (f *Folder) refusedIn(u *Unit) bool {
	dir := f.at(u)
	return slices.ContainsFunc(f.Refused, func(err error) bool {
		name, _, _ := strings.Cut(err.Error(), ": ")
		return path.Dir(name) == dir || name == dir
	})
}

// shardsBeside reports whether the directory above holds the weights, in the shards of a framework: verl keeps the
// configuration and the tokenizer in actor/huggingface and the weights in actor/model_world_size_*.pt.
func (f *Folder) shardsBeside(u *Unit) bool {
	up := path.Dir(u.Dir)
	return slices.ContainsFunc(f.Units, func(o *Unit) bool {
		return o != u && (o.Dir == up && o.hasLike("model_world_size_", "mp_rank_", "__0_0.distcp") || o.distributed() && path.Dir(o.Dir) == u.Dir)
	})
}

// shardsHold reports whether a pickle of the directory, or with "" of any, has a tensor of which the name contains part: shards of FSDP that a
// framework saves as they are.
func (f *Folder) shardsHold(dir, part string) bool {
	return slices.ContainsFunc(f.Units, func(u *Unit) bool {
		return (dir == "" || u.Dir == dir) && slices.ContainsFunc(u.Pickles, func(p *Pickle) bool {
			return p.Summary != nil && slices.ContainsFunc(p.Summary.Tensors, func(t pickle.Tensor) bool { return strings.Contains(t.Name, part) })
		})
	})
}

func shownAll(f *Folder, u *Unit, names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = path.Join(f.at(u), n)
	}
	return out
}

func (f *Folder) pickles() []string {
	var list []string
	for _, u := range f.Units {
		for _, p := range u.Pickles {
			list = append(list, p.Name)
		}
	}
	return list
}

// Leftovers looks for traces of a save that did not end.
var Leftovers = &check.Check[*Input]{
	Name: "folder/leftovers",
	Doc: `no files of an unfinished save or download are left

Temporary names (.tmp, .incomplete, .part, .lock) and files of weights without a byte. Beside complete weights they are a
warning: a save was killed, or is under way.`,
	Source: "crash-safe saves",
	Fix:    "wait for the save to end, or delete the temporary files and save again",
	Run: func(in *Input) ([]check.Result, error) {
		f := in.Folder
		var names, empty []string
		for _, e := range f.Entries {
			b := strings.ToLower(e.Name)
			for part := range strings.SplitSeq(b, "/") {
				if strings.HasSuffix(part, ".tmp") || strings.Contains(part, ".tmp-") || strings.HasSuffix(part, ".incomplete") || strings.HasSuffix(part, ".part") || strings.HasPrefix(part, "tmp-checkpoint-") {
					names = append(names, e.Name)
					break
				}
			}
			if e.Size == 0 && e.Err == nil && isPickle(b) {
				empty = append(empty, e.Name)
			}
		}
		var out []check.Result
		out = append(out, ifAny(warn, f.Tree.Path(), "HALF-WRITTEN", "a save or a download did not end", "temporary file", "%s: %s", names)...)
		if len(empty) > 0 {
			out = append(out, fail(f.Tree.Path(), "ZERO-BYTES", "a file of no bytes: the disk was full, or the save was killed", "no bytes in %s", several(empty)))
		}
		if len(out) == 0 && len(f.Units) > 0 {
			out = append(out, pass(f.Tree.Path(), len(f.Entries), "%s", plural(len(f.Entries), "file")))
		}
		return out, nil
	},
}

// Manifests checks folders against the manifest of the save.
var Manifests = &check.Check[*Input]{
	Name: "folder/manifest",
	Doc: `a checkpoint with a MANIFEST.json holds exactly the files that it names, with their sizes and digests

The manifest is written last: where it agrees, the save ended and nothing was changed since.`,
	Source: "crash-safe saves",
	Fix:    "resume from the checkpoint before this one; do not edit files of a checkpoint",
	Run: func(in *Input) ([]check.Result, error) {
		f := in.Folder
		return each(f.Units, func(u *Unit) ([]check.Result, error) {
			switch {
			case u.Manifest != nil:
				return f.compareManifest(u)
			case f.Run != nil && f.Run.sealed() && (u == f.Run.Final || slices.Contains(f.Run.StepsAt, u)) && !f.refusedIn(u):
				return []check.Result{fail(f.at(u), "MANIFEST-MISSING", "the save did not end, or the manifest was not copied", "MANIFEST.json is missing, and other checkpoints of the run have one: a resume passes this one over")}, nil
			}
			return nil, nil
		})
	},
}

func (f *Folder) compareManifest(u *Unit) (out []check.Result, err error) {
	m, subject := u.Manifest, f.at(u)
	if m.changed {
		out = append(out, fail(subject, "MANIFEST-DIGEST", "the manifest was changed since the save", "MANIFEST.json is not what its own manifest_sha256 says"))
	}
	names := slices.Sorted(maps.Keys(m.Files))
	for _, n := range names {
		want := m.Files[n]
		full := path.Join(u.Dir, n)
		i, ok := slices.BinarySearchFunc(f.Entries, full, func(e Entry, name string) int { return strings.Compare(e.Name, name) })
		switch {
		case !ok:
			out = append(out, fail(subject, "MANIFEST-MISSING", "a file is gone since the save", "the manifest names %s, which is not there", n))
			continue
		case f.Entries[i].Err != nil:
			continue // refused, and said so
		case f.Entries[i].Link:
			out = append(out, fail(subject, "MANIFEST-DIGEST", "a file was replaced since the save", "%s is a symbolic link, and the save wrote a file: a resume refuses it", n))
			continue
		case want.size >= 0 && want.size != f.Entries[i].Size:
			out = append(out, fail(subject, "MANIFEST-DIGEST", "a file was changed since the save", "%s has %d bytes, the manifest says %d", n, f.Entries[i].Size, want.size))
			continue
		}
		if want.sha256 == "" {
			continue
		}
		sum, err := f.sha256(full)
		if err != nil {
			return out, err
		}
		if sum != want.sha256 {
			out = append(out, fail(subject, "MANIFEST-DIGEST", "a file was changed since the save", "sha256 of %s is %.12s…, the manifest says %.12s…", n, sum, want.sha256))
		}
	}
	var extra []string
	for b := range u.Entries {
		if _, ok := m.Files[b]; !ok && b != "MANIFEST.json" {
			extra = append(extra, b)
		}
	}
	slices.Sort(extra)
	if len(extra) > 0 {
		out = append(out, fail(subject, "MANIFEST-EXTRA", "files that the save did not write", "%s not named by the manifest", several(extra)))
	}
	if step, ok := f.stepOf(u); ok && m.Step >= 0 && m.Step != step {
		out = append(out, fail(subject, "MANIFEST-STEP", "the manifest of another step", "the folder is of step %d, its manifest of step %d", step, m.Step))
	}
	if len(out) == 0 {
		out = append(out, pass(subject, len(names), "%s as the manifest says", plural(len(names), "file")))
	}
	return out, nil
}

// weightless is the name of a folder of sentence-transformers whose module has nothing to learn.
var weightless = regexp.MustCompile(`^[0-9]+_(Pooling|Normalize)$`)
