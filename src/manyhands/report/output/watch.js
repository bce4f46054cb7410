{
  const { version } = document.documentElement.dataset;
  const state = document.getElementById("watch");
  const pause = () => new Promise((done) => setTimeout(done, 5000));
  const follow = async () => {
    for (;;) {
      try {
        const answer = await fetch(`/changed?from=${version}`, { cache: "no-store" });
        if (answer.status === 200) { location.reload(); return; }
        state.textContent = "This page follows the runs.";
        if (answer.status !== 204) await pause();
      } catch {
        state.textContent = "Nobody serves this page any more; it shows how things were.";
        await pause();
      }
    }
  };
  follow();
}
