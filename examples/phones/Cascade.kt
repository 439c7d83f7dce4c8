// Runs what `graphcut export --to mobile` writes; not compiled by the tests, which run the same loop in Python.
// ai.onnxruntime, org.json; the caller closes what is in the result
fun run(env: OrtEnvironment, folder: File, inputs: Map<String, OnnxTensor>): Map<String, OnnxTensor> {
    fun JSONObject.list(key: String) = getJSONArray(key).let { List(it.length(), it::getString) }
    val manifest = JSONObject(File(folder, "cascade.json").readText())
    val parts = manifest.getJSONArray("parts")
    val values = HashMap(inputs)
    for (i in 0 until parts.length()) {
        val part = parts.getJSONObject(i)
        env.createSession(File(folder, part.getString("file")).path).use { session ->
            val outputs = session.run(values.filterKeys(part.list("reads").toSet()::contains))
            for ((name, value) in outputs) values[name] = value as OnnxTensor
        }
    }
    return manifest.list("writes").associateWith(values::getValue)
}
