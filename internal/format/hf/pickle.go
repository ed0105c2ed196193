package hf

import (
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/format"
)

// pickleEnds are the ends of the names under which torch saves: a pickle, which is a program that runs when it is loaded.
var pickleEnds = []string{".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}

func pickled(name string) bool { return slices.Contains(pickleEnds, filepath.Ext(name)) }

// convert is the Python program that Convert shows. It asks torch for tensors only, in all files that its arguments after the
// first name, and copies them because safetensors refuses tensors that share memory.
const convert = `import sys, torch; from safetensors.torch import save_file; s = {}; ` +
	`[s.update(torch.load(p, map_location="cpu", weights_only=True)) for p in sys.argv[2:]]; ` +
	`save_file({k: v.clone().contiguous() for k, v in s.items()}, sys.argv[1], {"format": "pt"})`

// Convert returns the command, for a POSIX shell, that writes the state dict of the pickles of one model as the safetensors
// file at path. It needs torch and safetensors and does not run what a pickle says (weights_only).
func Convert(path string, pickles ...string) string {
	words := []string{"python", "-c", format.ShellQuote(convert), format.ShellQuote(path)}
	for _, p := range pickles {
		words = append(words, format.ShellQuote(p))
	}
	return strings.Join(words, " ")
}

// Pickled returns the error about a pickle at path, with the command that converts it.
func Pickled(path string, more ...string) error {
	to := filepath.Join(filepath.Dir(path), "model.safetensors")
	return format.Malformed(path, "", "is a pickle, which can run any code when it is loaded, and is never read. This writes safetensors:\n%s",
		Convert(to, append([]string{path}, more...)...))
}

// nothing explains why there are no weights under the name single.
func (f *Folder) nothing(single string) error {
	entries, err := f.dir.Entries()
	if err != nil {
		return err
	}
	var pickles, others []string
	for _, e := range entries {
		switch {
		case pickled(e) && (strings.HasPrefix(e, "pytorch_model") || strings.HasPrefix(e, "model") || strings.HasPrefix(e, "consolidated")):
			pickles = append(pickles, f.file(e))
		case filepath.Ext(e) == ".safetensors" || filepath.Ext(e) == ".gguf" || strings.HasPrefix(e, "model.safetensors.index."):
			others = append(others, e)
		}
	}
	switch {
	case len(others) > 0:
		if len(others) > 5 {
			others = append(others[:5], "…")
		}
		return format.Malformed(f.Path, "", "holds neither %s nor its index, but %s", single, strings.Join(others, ", "))
	case len(pickles) > 0:
		return Pickled(pickles[0], pickles[1:]...)
	}
	return format.Malformed(f.Path, "", "holds no weights: neither %s nor its index", single)
}
