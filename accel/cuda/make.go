//go:build ignore

// make compiles the kernels of this folder to PTX and assembles them for every target, to see that they fit: registers, spills and
// shared memory go into RESOURCES.md. The compiler comes from PyPI; no driver and no GPU is needed.
//
//	go run make.go -cuda .venv/lib/python3.11/site-packages/nvidia/cu13 -dir accel/cuda
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
)

const version = "13.0.88" // of nvcc; newer ones write PTX that a driver 580 refuses

var targets = []string{"sm_80", "sm_90", "sm_90a"}

func main() {
	log.SetFlags(0)
	home := flag.String("cuda", "", "folder with bin/nvcc of nvidia-cuda-nvcc=="+version)
	dir := flag.String("dir", ".", "folder of the kernels")
	flag.Parse()
	if err := run(*home, *dir); err != nil {
		log.Fatal("make ptx: ", err)
	}
}

func run(home, dir string) error {
	home, err := filepath.Abs(home) // nvcc runs in the folder of its source
	if err != nil {
		return err
	}
	nvcc, ptxas := filepath.Join(home, "bin", "nvcc"), filepath.Join(home, "bin", "ptxas")
	out, err := exec.Command(nvcc, "--version").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w", nvcc, err)
	}
	if !strings.Contains(string(out), "V"+version) {
		return fmt.Errorf("%s is not version %s:\n%s", nvcc, version, out)
	}
	header, err := os.ReadFile(filepath.Join(dir, "device.cuh"))
	if err != nil {
		return err
	}
	sources, err := filepath.Glob(filepath.Join(dir, "*.cu"))
	if err != nil {
		return err
	}
	sort.Strings(sources)
	sources = append(sources, filepath.Join(dir, "ptxsim", "testdata", "foreign.cu"))
	tmp, err := os.MkdirTemp("", "ptx")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	var rows []string
	for _, source := range sources {
		text, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(append(slices.Clone(header), text...))
		name := strings.TrimSuffix(filepath.Base(source), ".cu")
		made := filepath.Join(tmp, name+".ptx")
		cmd := exec.Command(nvcc, "-arch=sm_80", "-fmad=false", "-ptx", filepath.Base(source), "-o", made)
		cmd.Dir = filepath.Dir(source)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", source, err, out)
		}
		ptx, err := os.ReadFile(made)
		if err != nil {
			return err
		}
		for _, target := range targets {
			out, err := exec.Command(ptxas, "-v", "-arch="+target, made, "-o", filepath.Join(tmp, "out.cubin")).CombinedOutput()
			if err != nil {
				return fmt.Errorf("ptxas %s %s: %w\n%s", target, name, err, out)
			}
			rows = append(rows, resources(name, target, string(out))...)
		}
		line := fmt.Sprintf("// source sha256 %s, nvcc %s -arch=sm_80 -fmad=false\n", hex.EncodeToString(sum[:]), version)
		if err := os.WriteFile(filepath.Join(filepath.Dir(source), name+".ptx"), append([]byte(line), ptx...), 0o644); err != nil {
			return err
		}
	}
	table := "# What the kernels take\n\nWritten by `make ptx` from `ptxas -v` of CUDA " + version + ". A spill is bytes of local memory that registers are stored to and loaded from.\n\n" +
		"| module | kernel | target | registers | spill stores | spill loads | shared bytes |\n|---|---|---|---|---|---|---|\n" + strings.Join(rows, "")
	return os.WriteFile(filepath.Join(dir, "RESOURCES.md"), []byte(table), 0o644)
}

var (
	entry  = regexp.MustCompile(`Compiling entry function '(\w+)'`)
	spills = regexp.MustCompile(`(\d+) bytes spill stores, (\d+) bytes spill loads`)
	used   = regexp.MustCompile(`Used (\d+) registers`)
	smem   = regexp.MustCompile(`(\d+) bytes smem`)
)

// resources reads what ptxas says of each kernel.
func resources(module, target, out string) (rows []string) {
	var kernel, stores, loads string
	for _, line := range strings.Split(out, "\n") {
		if m := entry.FindStringSubmatch(line); m != nil {
			kernel = m[1]
		}
		if m := spills.FindStringSubmatch(line); m != nil {
			stores, loads = m[1], m[2]
		}
		if m := used.FindStringSubmatch(line); m != nil {
			shared := "0"
			if s := smem.FindStringSubmatch(line); s != nil {
				shared = s[1]
			}
			rows = append(rows, fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |\n", module, kernel, target, m[1], stores, loads, shared))
		}
	}
	return rows
}
