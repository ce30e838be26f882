# Follows a run's metrics.jsonl, and sends it to W&B or MLflow by their own clients.
import sys
if sys.path[:1] == [""]: del sys.path[0]  # modules of the working folder: wandb/ there holds W&B's files
import importlib.util, json, os, time, uuid

with open(sys.argv[1]) as file: job = json.load(file)
client, folder, config = job["client"], job["folder"], job["config"]
spec = importlib.util.find_spec(client)
if spec is None or spec.origin is None:  # none, or a folder of that name without a module
    sys.exit(f"gptrain: {sys.executable} has no module {client}\n    → {sys.executable} -m pip install {client}")
state_file = os.path.join(folder, client + ".json")  # the client's id of this run, and the last step sent
state = json.load(open(state_file)) if os.path.exists(state_file) else {"id": None, "step": -1}

def wandb():
    import wandb
    run = wandb.init(project=job["project"], name=job["name"], config=config, dir=folder,
                     id=state["id"] or uuid.uuid4().hex[:8], resume="allow")
    return run.id, run.log, lambda code: run.finish(exit_code=code)

def mlflow():
    import mlflow
    mlflow.set_experiment(job["project"])
    run = mlflow.start_run(run_id=state["id"], run_name=job["name"])
    mlflow.log_params({key: str(value)[:500] for key, value in config.items()} if state["id"] is None else {})
    return run.info.run_id, mlflow.log_metrics, lambda code: mlflow.end_run("FAILED" if code else "FINISHED")

state["id"], log, finish = {"wandb": wandb, "mlflow": mlflow}[client]()

def save(step):
    state["step"] = step
    with open(state_file + ".partial", "w") as file: json.dump(state, file)
    os.replace(state_file + ".partial", state_file)

def send(row):
    step, prefix = row.pop("step"), ""
    if "eval" in row: prefix = f"valid/{row.pop('eval')}/".replace("valid/valid/", "valid/")  # a set has this name by default
    if "task" in row: prefix = f"task/{row.pop('task')}/"
    if step > state["step"]: log({prefix + k: v for k, v in row.items() if isinstance(v, (int, float))}, step=step)
    return step

def follow():
    file, rest, step = None, "", state["step"]
    while True:
        with open(os.path.join(folder, "status.json")) as status: status = json.load(status)
        path = os.path.join(folder, "metrics.jsonl")  # a resumed run replaces it: steps sent before are not sent again
        if file is None or os.fstat(file.fileno()).st_ino != os.stat(path).st_ino: file, rest = open(path), ""
        while line := file.readline():
            rest += line
            if not rest.endswith("\n"): continue
            row, rest = json.loads(rest), ""
            if "parts" in row: continue  # the plan beside the step: no curve
            if row["step"] > step >= 0: save(step)  # all lines of that step are sent
            step = max(step, send(row))
        if status["ended"] or time.time() - status["updated"] > 60:
            save(step)
            return 0 if status["ended"] and not status["phase"].startswith("failed") else 1
        time.sleep(job["poll_s"])

save(state["step"])
try: code = follow()
except KeyboardInterrupt: code = 130
finish(code)
sys.exit(code)
