package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
)

// redirected is an error whose message names the command that the input belongs to. Its class is that of the error.
type redirected struct {
	error
	text string
}

func (r redirected) Error() string { return r.text }
func (r redirected) Unwrap() error { return r.error }

// notDumps says of paths that could not be read as dumps what they are, where that is plain.
func notDumps(paths []string, err error) error {
	for _, path := range paths {
		folder := path
		if info, statErr := os.Stat(path); statErr == nil && !info.IsDir() {
			folder = filepath.Dir(path)
		}
		switch {
		case isPickle(path):
			return redirected{err, fmt.Sprintf("%s is a pickle of torch under another name, which is never loaded: write it with safetensors.torch.save_file, or as a dump (verify explain dump)", path)}
		case isModel(folder):
			return redirected{err, fmt.Sprintf("%s is a model, not a dump: verify checkpoint %s", path, format.ShellQuote(folder))}
		}
	}
	return err
}

// notCheckpoint is nil unless a folder holds dumps and no model.
func notCheckpoint(ctx context.Context, folder string) error {
	if isModel(folder) {
		return nil
	}
	if _, err := dumpfile.Open(ctx, []string{folder}); err != nil {
		return nil
	}
	return usageError{fmt.Sprintf("%s holds dumps, not a model: verify dump %s", folder, format.ShellQuote(folder))}
}

// isModel reports whether a folder has the configuration of a model or an adapter.
func isModel(folder string) bool {
	for _, name := range []string{"config.json", "adapter_config.json"} {
		if info, err := os.Stat(filepath.Join(folder, name)); err == nil && info.Mode().IsRegular() {
			return true
		}
	}
	return false
}

// isPickle reports whether a file named .safetensors begins as what torch.save writes: a zip archive or a pickle.
func isPickle(path string) bool {
	if info, err := os.Stat(path); !strings.HasSuffix(strings.ToLower(path), ".safetensors") || err != nil || !info.Mode().IsRegular() {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var head [8]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return false
	}
	// A dump begins with the length of its header, little-endian and far below 4 GiB.
	return string(head[:4]) == "PK\x03\x04" || head[0] == 0x80 && head[1] <= 5 && binary.LittleEndian.Uint64(head[:]) >= 1<<32
}
