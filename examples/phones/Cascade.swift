// Runs what `graphcut export --to mobile` writes; not compiled by the tests, which run the same loop in Python.
// onnxruntime_objc
struct Part: Decodable { let file: String, reads: [String], writes: [String] }
struct Manifest: Decodable { let writes: [String], parts: [Part] }

func run(_ env: ORTEnv, _ folder: URL, _ inputs: [String: ORTValue]) throws -> [String: ORTValue] {
    let raw = try Data(contentsOf: folder.appendingPathComponent("cascade.json"))
    let manifest = try JSONDecoder().decode(Manifest.self, from: raw)
    var values = inputs
    for part in manifest.parts {
        let path = folder.appendingPathComponent(part.file).path
        let session = try ORTSession(env: env, modelPath: path, sessionOptions: nil)
        let fed = values.filter { part.reads.contains($0.key) }
        values.merge(try session.run(withInputs: fed, outputNames: Set(part.writes), runOptions: nil)) { $1 }
    }
    return values.filter { manifest.writes.contains($0.key) }
}
