// SPDX-License-Identifier: Apache-2.0

// Command protogen compiles the proto files of this repository and writes the
// Go code next to them. It needs no protoc and no network: the compiler is a
// library and the two plugins are built from this module.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

const modulePath = "github.com/inferencecache/inference-cache"

func main() {
	root := flag.String("root", ".", "repository root")
	out := flag.String("out", "", "directory to write below (default: the root)")
	flag.Parse()
	if *out == "" {
		*out = *root
	}
	if err := run(*root, *out); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(root, out string) error {
	files, err := protoFiles(filepath.Join(root, "proto"))
	if err != nil {
		return err
	}
	request, err := compile(filepath.Join(root, "proto"), files)
	if err != nil {
		return err
	}
	for _, plugin := range []string{
		"google.golang.org/protobuf/cmd/protoc-gen-go",
		"google.golang.org/grpc/cmd/protoc-gen-go-grpc",
	} {
		if err := generate(plugin, request, out); err != nil {
			return err
		}
	}
	return nil
}

func protoFiles(dir string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".proto" {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		files = append(files, filepath.ToSlash(rel))
		return err
	})
	return files, err
}

func compile(dir string, files []string) (*pluginpb.CodeGeneratorRequest, error) {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{dir}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	linked, err := compiler.Compile(context.Background(), files...)
	if err != nil {
		return nil, fmt.Errorf("compiling: %w", err)
	}
	request := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: files,
		Parameter:      proto.String("module=" + modulePath),
	}
	seen := map[string]bool{}
	for _, file := range linked {
		request.ProtoFile = appendWithImports(request.ProtoFile, seen, file)
	}
	return request, nil
}

func appendWithImports(list []*descriptorpb.FileDescriptorProto, seen map[string]bool, file protoreflect.FileDescriptor) []*descriptorpb.FileDescriptorProto {
	if seen[file.Path()] {
		return list
	}
	seen[file.Path()] = true
	imports := file.Imports()
	for i := range imports.Len() {
		list = appendWithImports(list, seen, imports.Get(i).FileDescriptor)
	}
	return append(list, protoutil.ProtoFromFileDescriptor(file))
}

func generate(plugin string, request *pluginpb.CodeGeneratorRequest, out string) error {
	input, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	command := exec.Command("go", "run", plugin)
	command.Stdin = bytes.NewReader(input)
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return fmt.Errorf("running %s: %w", plugin, err)
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(output, &response); err != nil {
		return fmt.Errorf("reading the answer of %s: %w", plugin, err)
	}
	if response.Error != nil {
		return fmt.Errorf("%s: %s", plugin, response.GetError())
	}
	for _, file := range response.File {
		name := filepath.Join(out, strings.TrimPrefix(file.GetName(), "/"))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(file.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
