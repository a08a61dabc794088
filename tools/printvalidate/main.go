// Printvalidate prints buf/validate/validate.proto from its compiled descriptor, for proto-vendor: the schema's source is
// not to be had as a Go module, its descriptor is.
package main

import (
	"log"
	"os"

	validatepb "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"github.com/jhump/protoreflect/v2/protoprint"
)

func main() {
	p := protoprint.Printer{}
	if err := p.PrintProtoFile(validatepb.File_buf_validate_validate_proto, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
