module github.com/sagad/sagad/tools/printvalidate

go 1.26.0

require (
	buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go v1.36.12-20260825204119-511051f7f437.2
	github.com/jhump/protoreflect/v2 v2.0.0
)

require google.golang.org/protobuf v1.36.12 // indirect
